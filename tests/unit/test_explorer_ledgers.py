"""The explorer over what the rules and a replica really write, its server process, and its small parts."""

from __future__ import annotations

import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import trio
from sqlmodel import Session, SQLModel, create_engine

from contracts.block import Transition
from gdf_market import messages
from gdf_market.codec import encode
from gdf_market.errors import StorageError, UsageError, UserError
from gdf_market.messages import Entry
from gdf_market.units import CREDIT, PPM
from ledger.effects import Broadcast, Finalized, ReplicaEvent, Save, SetTimer, Started, Submitted, Timer
from ledger.explorer import charts, escrow, present
from ledger.explorer.__main__ import main
from ledger.explorer.app import create_app
from ledger.explorer.sentences import entry_sentence, event_sentence
from ledger.explorer.serve import MAX_HEAD_BYTES, serve
from ledger.replica import Replica
from ledger.store import LedgerStore
from ledger.tables import EntryRow, EventRow, MetaRow, RecordRow
from tests.contracts_world import Actor, World, cast_all, key_of, play_to_end, start

ROOT = Path(__file__).parents[2]


def client(path: Path) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=create_app(path))
    return httpx.AsyncClient(transport=transport, base_url="http://explorer")


async def value(site: httpx.AsyncClient, path: str) -> Any:
    answer = await site.get(path, params={"format": "json"})
    assert answer.status_code == 200, (path, answer.text)
    assert (await site.get(path)).status_code == 200, path
    return answer.json()


# what the rules write


@dataclass
class RecordedWorld(World):
    """A network in memory whose entries and events are kept as a store would."""

    rows: list[SQLModel] = field(default_factory=list)

    def block(self, *entries: Entry, dt: int = 1_000) -> Transition:
        result = super().block(*entries, dt=dt)
        for position, entry in enumerate(entries):
            kind = entry.body.__struct_config__.tag
            job = entry.id if kind == "job_post" else getattr(entry.body, "job", "")
            where = {"height": self.height, "position": position, "kind": kind, "author": entry.body.author}
            self.rows.append(EntryRow(id=entry.id, job=job, raw=entry.raw, **where))
        for position, event in enumerate(result.events):
            self.rows.append(EventRow(height=self.height, position=position, **msgspec.structs.asdict(event)))
        return result

    def write(self, path: Path) -> Path:
        engine = create_engine(f"sqlite:///{path}")
        SQLModel.metadata.create_all(engine)
        with Session(engine) as session:
            session.add(MetaRow(key="genesis", value=encode(self.genesis)))
            session.add_all(self.rows)
            for key, record in self.state.records.items():
                kind = type(record).__name__.lower()
                session.add(RecordRow(key=key, kind=kind, value=encode(record), height=self.height))
            session.commit()
        engine.dispose()
        return path


def recorded_world() -> RecordedWorld:
    names = ("owner", "w1", "w2", "w3", "val", "val2")
    return RecordedWorld({name: 1_000 * CREDIT for name in names}, ("val", "val2"))


async def check_money(world: RecordedWorld, path: Path, job: str) -> Any:
    """Check every sum that the pages of this ledger show; return the job's page."""
    async with client(path) as site:
        overview = await value(site, "/")
        assert overview["supply_difference"] == 0
        found = await value(site, f"/job/{job}")
        assert [statement["difference"] for statement in found["statements"]] == [0, 0, 0]
        for view in found["rounds"]:
            await value(site, f"/job/{job}/round/{view['index']}")
            for cell in view["units"]:
                unit = await value(site, f"/unit/{job}/{view['index']}/{cell['slot']}")
                assert all(check["valid"] for check in unit["checks"])
                if pay := unit["payment"]:
                    assert pay["forfeited"] >= 0
                    settled = unit["unit"]["status"] != "accepted"
                    assert (pay["held"] == 0) == settled
                    assert (pay["forfeited"] == 0) == (unit["unit"]["status"] in ("paid", "accepted"))
        for name in world.balances:
            account = await value(site, f"/account/{key_of(name).account}")
            assert account["genesis_balance"] + account["moves"] == account["balance"] == world.balance(name)
            if account["history"]:
                assert account["history"][0]["balance"] == account["balance"]
        return found


async def test_an_honest_job_from_post_to_refund(tmp_path: Path) -> None:
    world = recorded_world()
    job = start(world, "w1", "w2", "w3", rounds=2)
    cast_all(world, lottery=True)
    world.cast(Actor("val2", lottery=True))
    play_to_end(world)
    found = await check_money(world, world.write(tmp_path / "honest.db"), job)
    assert found["job"]["status"] == "done"
    assert found["clearing"]["expected"] == found["clearing"]["recorded"]
    labels = [step["label"] for step in found["statements"][0]["steps"]]
    assert labels == ["Locked by the owner", "Base pay", "Merit pay", "Audit fees", "Refunded to the owner"]
    assert {cell["status"] for view in found["rounds"] for cell in view["units"]} == {"paid"}


async def test_a_cheat_is_convicted_and_every_sum_still_holds(tmp_path: Path) -> None:
    world = recorded_world()
    job = start(world, "w1", "w2", "w3", rounds=1, audit_floor_ppm=PPM)
    cast_all(world, lottery=True)
    world.cast(Actor("w3", flavour="cheat"), Actor("val2", lottery=True))
    world.play(lambda: world.unit(job, 0, 2).status == "convicted")
    found = await check_money(world, world.write(tmp_path / "cheat.db"), job)
    labels = {step["label"] for step in found["statements"][0]["steps"]}
    assert {"Slashed bonds", "Pay taken back from convicted workers"} <= labels
    async with client(tmp_path / "cheat.db") as site:
        unit = await value(site, f"/unit/{job}/0/2")
        assert unit["payment"]["forfeited"] == unit["payment"]["due"]
        assert "fail" in {audit["verdict"] for audit in unit["audits"]}
        assert unit["dispute"]["status"] == "convicted"
        kinds = [item["kind"] for item in unit["timeline"]]
        assert kinds.index("commit") < kinds.index("reveal") < kinds.index("audit_commit")
        # no sentence is left without its verb
        events = [EventRow(height=1, position=0, **msgspec.structs.asdict(event)) for event in world.events]
        assert all("{" not in event_sentence(event) for event in events)


# what a replica writes


class Node:
    """One validator with its store, on a clock of its own."""

    def __init__(self, path: Path) -> None:
        world = World({"owner": 1_000 * CREDIT, "w1": 1_000 * CREDIT, "val": 0}, ("val",))
        self.genesis, self.network = world.genesis, world.network
        self.store = LedgerStore(path)
        self.store.create(world.genesis)
        self.replica = Replica(world.genesis, key_of("val"), None)
        self.now = world.time_ms
        self.timers: dict[str, int] = {}
        self.step(Started())

    def step(self, event: ReplicaEvent) -> None:
        for effect in self.replica.step(event, self.now):
            if isinstance(effect, Save):
                self.store.save(effect.writes)
            elif isinstance(effect, SetTimer):
                self.timers[effect.name] = effect.at_ms
            else:
                assert isinstance(effect, Finalized | Broadcast)

    def run_to(self, height: int) -> None:
        while self.replica.height < height:
            name = min(self.timers, key=self.timers.__getitem__)
            self.now = max(self.now, self.timers.pop(name))
            self.step(Timer(name))


async def test_pages_while_a_replica_writes(tmp_path: Path) -> None:
    node = Node(tmp_path / "ledger.db")
    async with client(node.store.path) as site:
        assert (await value(site, "/"))["head"] is None
        head = {"nonce": 1, "expires_ms": node.now + 60_000, "author": key_of("owner").account}
        body = messages.Transfer(**head, to=key_of("w1").account, amount=3 * CREDIT, memo="thanks")
        entry = messages.seal(key_of("owner"), node.network, body)
        node.step(Submitted(entry))
        node.run_to(3)
        assert (await value(site, "/"))["head"]["height"] == 3
        assert (await value(site, f"/account/{key_of('w1').account}"))["balance"] == 1_003 * CREDIT
        found = await value(site, f"/entry/{entry.id}")
        assert found["valid"]
        for height in (1, 2, 3):
            checks = (await value(site, f"/block/{height}"))["checks"]
            assert [check["valid"] for check in checks] == [True] * 6, checks
    node.store.close()
    alone = tmp_path / "copy" / "ledger.db"
    alone.parent.mkdir()
    alone.write_bytes(node.store.path.read_bytes())
    async with client(alone) as site:
        assert (await value(site, f"/block/{node.replica.height}"))["is_head"]


# the server


def genesis_only(path: Path) -> Path:
    store = LedgerStore(path)
    store.create(recorded_world().genesis)
    store.close()
    return path


async def flood(port: int) -> None:
    """Send a request head without end: the server gives up instead of keeping it."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    with trio.fail_after(20):
        try:
            await stream.send_all(b"GET / HTTP/1.1\r\nx: ")
            for _ in range(64):
                await stream.send_all(b"a" * MAX_HEAD_BYTES)
            answer = await stream.receive_some()
            assert answer[9:10] in (b"", b"4")
        except trio.BrokenResourceError:
            pass


async def test_serve_reports_its_url_and_refuses_a_taken_port(tmp_path: Path, nursery: trio.Nursery) -> None:
    path = genesis_only(tmp_path / "ledger.db")
    url = await nursery.start(serve, path, "127.0.0.1", 0)
    port = httpx.URL(url).port
    assert port
    async with httpx.AsyncClient() as web:
        answer = await web.get(url + "healthz")
        assert answer.json()["status"] == "ok"
        assert "server" not in answer.headers
    await flood(port)
    with pytest.raises(UserError, match=f"port {port} on 127.0.0.1 is in use"):
        await serve(path, "127.0.0.1", port)
    with pytest.raises(UsageError, match="no ledger file"):
        await serve(tmp_path / "none.db")
    with pytest.raises(UserError, match=r"203\.0\.113\.1"):
        await serve(path, "203.0.113.1", 0)
    with pytest.raises(UserError, match="70000"):
        await serve(path, "127.0.0.1", 70_000)
    nursery.cancel_scope.cancel()


def test_the_process_names_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--db", str(tmp_path / "none.db")]) == 2
    assert "no ledger file at" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        path = genesis_only(tmp_path / "ledger.db")
        assert main(["--db", str(path), "--port", str(taken.getsockname()[1])]) == 1
    assert "is in use" in capsys.readouterr().err


def test_the_process_imports_no_training_and_no_network_code() -> None:
    code = "import ledger.explorer.serve, sys; print([m for m in ('torch', 'libp2p') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


# small parts


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0"), (1, "0.000001"), (1_234_500_000, "1,234.5"), (-2_500_000, "−2.5"), (2**53 - 1, "9,007,199,254.740991")],
)
def test_credits_read_as_people_write_them(amount: int, text: str) -> None:
    assert present.credits_text(amount) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0 ms"), (999, "999 ms"), (61_000, "1 min 1 s"), (3_725_000, "1 h 2 min"), (86_400_000 * 400, "400 d")],
)
def test_durations_have_two_units(ms: int, text: str) -> None:
    assert present.duration(ms) == text


def test_times_beyond_the_calendar_stay_numbers() -> None:
    assert present.utc(2**53 - 1) == f"{2**53 - 1} ms"
    assert present.iso(2**53 - 1) == ""
    assert present.ago(5_000, 2_000) == "in 3 s"
    assert present.percent(125_000) == "12.5%"
    assert present.percent(0) == "0%"
    assert present.ratio(21) == "2.1e-08"


def test_loss_chart_spans_its_axes() -> None:
    assert charts.loss_chart([(0, 5)]) is None
    chart = charts.loss_chart([(0, 3_000_000), (1, 2_000_000), (9, 1_000_000)])
    assert chart is not None
    points = [tuple(map(float, point.split(","))) for point in chart.points.split()]
    assert [x for x, _ in points] == [charts.LEFT, pytest.approx(119.6, abs=0.1), charts.WIDTH - charts.RIGHT]
    assert [y for _, y in points] == sorted(y for _, y in points)
    assert all(charts.TOP <= y <= charts.HEIGHT - charts.BOTTOM for _, y in points)
    flat = charts.loss_chart([(0, 1_000_000), (1, 1_000_000)])
    assert flat is not None


def test_statement_counts_only_what_crosses_the_pots() -> None:
    flows = [
        ("escrow", "a", "escrow", 100, 1),
        ("held", "escrow", "held", 60, 2),
        ("forfeited", "held", "escrow", 10, 1),
        ("forfeited", "escrow", "audit_escrow", 5, 1),  # inside
        ("novel", "escrow", "b", 1, 1),
    ]
    found = escrow.statement(escrow.ESCROW, flows, 49)
    assert [(step.label, step.amount, step.start) for step in found.steps] == [
        ("Locked by the owner", 100, 0),
        ("Base pay", -60, 100),
        ("Forfeited by who missed a duty", 10, 40),
        ("Novel (out)", -1, 50),
    ]
    assert (found.difference, found.peak) == (0, 100)
    assert escrow.statement(escrow.ESCROW, flows, 50).difference == -1


def test_every_kind_of_entry_has_its_sentence() -> None:
    unknown = "of a kind this explorer does not know"
    common = {"author": key_of("w1").account, "nonce": 1, "expires_ms": 1}
    assert unknown in entry_sentence(messages.Body(**common))
    for kind in messages.EntryBody.__args__:
        assert entry_sentence.dispatch(kind) is not entry_sentence.dispatch(messages.Body), kind
    cancel = messages.JobCancel(**common, job="ab" * 32)
    assert entry_sentence(cancel).endswith("cancels job abababab…babab; the round under way still settles.")


def test_a_reader_reports_a_database_that_vanished(tmp_path: Path) -> None:
    path = genesis_only(tmp_path / "ledger.db")
    app = create_app(path)
    path.unlink()
    explorer = app.exception_handlers[StorageError].__self__
    with pytest.raises(StorageError, match="cannot be read"), explorer._ledger.read() as reader:
        reader.head()
