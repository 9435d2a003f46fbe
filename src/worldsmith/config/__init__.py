"""The typed run tree and the front doors that lead to it. Never imports torch."""

from worldsmith.config.configurable import Config, Configurable

__all__ = ["Config", "Configurable"]
