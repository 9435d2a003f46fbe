"""Commands around a run: a folder for each, whose `__init__.py` names its commands as `COMMANDS`."""
