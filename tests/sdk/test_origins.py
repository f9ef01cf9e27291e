"""What a run starts from is declared by the client: a run, a checkpoint's state, or a model from outside."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from epsilon_ledger import ModelOrigin, OriginReference, RunOrigin, run_of_checkpoint
from tests.sdk.both_clients import OpenClient
from tests.sdk.fake_ledger import RUN, FakeLedger
from tests.sdk.wire import KEY, URL

GPT2 = ModelOrigin("gpt2", "5a" * 32)


def _sent(open_client: OpenClient, origins: Any) -> Any:  # noqa: ANN401 - what is tested
    wire = FakeLedger()
    open_client(URL, KEY, transport=wire).create_run("tuned", budget="mimic/icu-team", starts_from=origins)
    return wire.bodies[0].get("starts_from")


def test_each_way_to_name_an_origin_is_sent(open_client: OpenClient) -> None:
    wire = FakeLedger()
    run = open_client(URL, KEY, transport=wire).create_run("base", budget="mimic/icu-team")
    state = run.state_dict()
    accountant = {"mechanism": "rdp", "run": "run_7", "events": []}
    ways: list[OriginReference] = [run, run.state, state, "mimic/icu-team/base", accountant, RunOrigin("run_8"), GPT2]
    ways.append({"name": "gpt2", "sha256": "5a" * 32})
    named = [{"run": each} for each in (*[RUN["id"]] * 3, "mimic/icu-team/base", "run_7", "run_8")]
    outside = {"name": "gpt2", "sha256": "5a" * 32}
    assert _sent(open_client, ways) == [*named, outside, outside]
    assert (_sent(open_client, []), _sent(open_client, None)) == ([], None)
    assert run_of_checkpoint(state) == RUN["id"]


def test_value_that_is_no_origin_is_refused(open_client: OpenClient) -> None:
    wrong: list[tuple[object, type[Exception]]] = [
        ("mimic/icu-team/base", TypeError),
        ([7], TypeError),
        ([{"step": 3}], ValueError),
        ([{"run": None}], ValueError),
        ({"run": "run_1"}, TypeError),
    ]
    for origins, kind in wrong:
        with pytest.raises(kind, match=r"starts_from|state_dict"):
            _sent(open_client, origins)


def test_digest_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "gpt2.safetensors"
    file.write_bytes(b"weights")
    digest = sha256(b"weights").hexdigest()
    assert ModelOrigin.of_file(file) == ModelOrigin("gpt2.safetensors", digest)
    assert ModelOrigin.of_file(file, "gpt2").name == "gpt2"


def test_origins_of_a_run_are_read(open_client: OpenClient) -> None:
    sent = [{"run": "run_7"}, {"name": "gpt2", "sha256": "5a" * 32}]
    for told, read in ((sent, (RunOrigin("run_7"), GPT2)), ([], ()), (None, None)):
        wire = FakeLedger(run=RUN | {"starts_from": told})
        assert open_client(URL, KEY, transport=wire).get_run("run_1").starts_from == read
