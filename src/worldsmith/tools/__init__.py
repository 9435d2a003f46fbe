"""Commands around a run: one subpackage per command, whose `__init__.py` registers it in `COMMANDS`."""
