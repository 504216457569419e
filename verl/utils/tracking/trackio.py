"""trackio."""

import logging
import os
from typing import Any

from verl.utils.tracking.base import Run, Scalar, cells, picture

logger = logging.getLogger(__name__)


class TrackioBackend:
    """Writes to `<directory>/trackio`; `TRACKIO_DIR` names another folder, `TRACKIO_SPACE_ID` or `TRACKIO_SERVER_URL`
    a server. `TRACKIO_DIR=<directory>/trackio trackio show` shows it.

    trackio chooses its folder once for a process, so a second run in the same process writes to the first one's.
    """

    def __init__(self, run: Run) -> None:
        own = run.directory.absolute() / "trackio"
        os.environ.setdefault("TRACKIO_DIR", str(own))
        import trackio
        from trackio.utils import TRACKIO_DIR

        if own != TRACKIO_DIR:
            logger.warning("trackio writes to %s, not to %s", TRACKIO_DIR, own)
        self._run = trackio.init(project=run.project, name=run.experiment, config=run.plain_config(), embed=False)

    def log(self, data: dict[str, Scalar], step: int) -> None:
        self._run.log(data, step=step)

    def log_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int) -> None:
        import trackio

        self._run.log({name: trackio.Table(columns=columns, data=cells(rows))}, step=step)

    def log_figure(self, name: str, figure: Any, step: int) -> None:
        import trackio

        self._run.log({name: trackio.Image(picture(figure))}, step=step)

    def finish(self) -> None:
        self._run.finish()
