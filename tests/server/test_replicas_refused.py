"""Replicas that cannot be, before Ray is started; and what an application of a deployment file is."""

from __future__ import annotations

import re

import pytest

from roseinfer.cli.commands import serve as command
from roseinfer.cli.main import main
from roseinfer.paths import ROOT

pytestmark = pytest.mark.filterwarnings("ignore:Using extra keyword arguments on `Field`")  # Ray's own, of pydantic


def test_without_the_extra_it_is_named(capsys, monkeypatch):
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    assert main(["serve", "tiny", "--replicas", "2"]) == 2
    assert "--replicas 2: needs Ray Serve: run `pip install '.[scale]'`" in capsys.readouterr().err


def test_shards_and_a_learners_engine_do_not_combine_with_replicas():
    command.check_replicas(2, {}, {"tensor_parallel_size": 1})
    with pytest.raises(ValueError, match="--tensor-parallel 2 does not combine with --replicas 3"):
        command.check_replicas(3, {}, {"tensor_parallel_size": 2})
    with pytest.raises(ValueError, match="--engine: does not combine with --replicas"):
        command.check_replicas(2, {}, {"stage": object})


@pytest.fixture(scope="module")
def application():
    """Ray is imported, and not started."""
    from roseinfer.server.replicas import application

    return application


@pytest.mark.slow
def test_the_deployment_file_of_the_docs_is_an_application(application):
    from ray.serve import Application

    text = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    [file] = [code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "application(" in code]
    names: dict = {}
    exec(file, names)
    app = names["app"]
    assert isinstance(app, Application) and len(file.splitlines()) <= 12
    deployment = app._bound_deployment
    scaling = deployment._deployment_config.autoscaling_config
    assert 1 <= scaling.min_replicas < scaling.max_replicas
    assert deployment.ray_actor_options["num_gpus"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"min_replicas": 0}, "min_replicas must be an integer from 1 to 4,096, got 0"),
        ({"min_replicas": 3, "max_replicas": 2}, "max_replicas must be an integer from 3 to 4,096, got 2"),
        ({"num_cpus": 0}, "num_cpus must be a number above 0, got 0"),
        ({"server": {"max_queue": -1}}, "max_queue must be an integer of at least 0, got -1"),
    ],
)
def test_an_application_that_cannot_be(application, arguments, message):
    with pytest.raises(ValueError, match=message):
        application("tiny", **arguments)


@pytest.mark.slow
def test_a_replica_takes_what_its_engine_takes_and_a_few_more(application):
    deployment = application("tiny", engine={"max_num_seqs": 8}, server={"max_queue": 10})._bound_deployment
    assert deployment.max_ongoing_requests == 8 + 10 + 16 and deployment.num_replicas == 1
