"""The Python interface: ``from gdf_market import Job``, then ``job.post()``, ``job.watch()``, ``job.load()``.

They do what the commands ``post``, ``jobs show --watch`` and ``jobs fetch`` do, with the same settings: the data
folder is ``data_dir``, else GDF_DATA_DIR, else the platform's; the passphrase is in GDF_PASSPHRASE.  All raise
GdfErrors.  They need the main thread, for Ctrl-C.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gdf_market.train import job as declared

if TYPE_CHECKING:
    from gdf_market.commands.posted import PostedJob
    from gdf_market.commands.progress import RoundMetrics


class Job(declared.Job):
    __doc__ = declared.Job.__doc__

    def post(self, *, data_dir: str | Path | None = None, quiet: bool = False, **terms: Any) -> PostedJob:
        """Post the job; when this returns it is final on the ledger, and others hold its program and data.

        ``terms`` are those of ``gdf-market post``: rounds, units, max_price (credits), min_workers, shards, …
        """
        # here, not above: a job file that is only declared should not wait for all that a node needs
        from gdf_market.commands.post import prepare_order, publish, summary
        from gdf_market.commands.posted import PostedJob, open_app
        from gdf_market.commands.session import interrupted_after, load_identity
        from gdf_market.commands.terms import terms_of

        app = open_app(data_dir, quiet=quiet)
        account = load_identity(app).account
        app.data.genesis()
        with app.progress("capturing the job"), interrupted_after():
            fields, estimate = prepare_order(app, self, terms_of(self, terms), self.title or "job")
        value = summary(app, fields, estimate, account)
        value |= publish(app, value, fields)
        return PostedJob(str(value["job"]), self.model, value, app)

    def posted(self, job: str | None = None, *, data_dir: str | Path | None = None, quiet: bool = False) -> PostedJob:
        """Return the posted job whose id starts with ``job``; without it, the account's latest."""
        from gdf_market.commands.jobs import find_job
        from gdf_market.commands.posted import PostedJob, open_app
        from gdf_market.commands.reading import open_ledger, resolve_job
        from gdf_market.commands.session import load_identity

        app = open_app(data_dir, quiet=quiet)
        with open_ledger(app) as store:
            found = resolve_job(store, job) if job else find_job(store, None, load_identity(app).account).id
        return PostedJob(found, self.model, {}, app)

    def watch(self, job: str | None = None, *, data_dir: str | Path | None = None) -> Iterator[RoundMetrics]:
        """Yield the settled rounds of a posted job; see PostedJob.watch and ``posted``."""
        return self.posted(job, data_dir=data_dir).watch()

    def checkpoint(
        self,
        path: str | Path | None = None,
        *,
        job: str | None = None,
        wait: bool = False,
        data_dir: str | Path | None = None,
    ) -> dict[str, torch.Tensor]:
        """Fetch the state dict of a posted job; see PostedJob.checkpoint and ``posted``."""
        return self.posted(job, data_dir=data_dir).checkpoint(path, wait=wait)

    def load(self, *, job: str | None = None, wait: bool = False, data_dir: str | Path | None = None) -> nn.Module:
        """Load a posted job's checkpoint into ``model`` and return it; see ``posted``."""
        return self.posted(job, data_dir=data_dir).load(wait=wait)
