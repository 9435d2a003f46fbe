"""`worldsmith watch RUN`: shows the page of a run in a browser on this machine, up to date."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from worldsmith.actions.action import Action, Result
from worldsmith.config.declare.ranges import Range

if TYPE_CHECKING:
    from worldsmith.monitor.page.serve import PageServer


class Watch(Action):
    """Serves the page of a run on this machine only, up to date while the run goes on, until Ctrl-C."""

    places: ClassVar[tuple[str, ...]] = ("run",)

    class Config(Action.Config):
        run: str
        """The run folder."""
        port: Annotated[int, Range(ge=0, le=65535)] = 8600
        """Port on 127.0.0.1; 0: any that is free."""

    config: Config

    def run(self) -> Result:
        from worldsmith.monitor.page.run_files import require_run
        from worldsmith.monitor.page.serve import PageServer

        server = PageServer(require_run(Path(self.config.run)), self.config.port)
        return Result(self.serve(server), {"address": server.address})

    def serve(self, server: PageServer) -> Iterator[str]:
        """Says where it is, and serves as long as somebody listens to what this says."""
        yield f"{self.config.run} is shown at {server.address} (Ctrl-C ends this; the run goes on)"
        with server:
            server.serve_forever()
