"""roseinfer reproduce: its arguments, its files, its dry run, and what goes wrong in a run."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from made_up import BAD_REPORT, COMMAND, REPORT

from course.posts.report.template import to_markdown
from roseinfer.bench.contenders import ContenderFailed
from roseinfer.cli.main import main
from roseinfer.models.load import ModelLoadError
from stages import LADDER


@pytest.fixture
def post(monkeypatch):
    """Post 000 as a module that answers at once; `settings` are those it was given."""
    settings = []

    def made(setting):
        settings.append(setting)
        setting.say("counting")
        return module.report

    module = SimpleNamespace(
        reproduce=made,
        report=REPORT,
        settings=settings,
    )
    monkeypatch.setitem(sys.modules, "course.posts.post000", module)
    return module


def run(tmp_path, *arguments):
    return main(["reproduce", "000", "--device", "cpu", "--out", str(tmp_path / "reports"), *arguments])


def test_the_plan_has_what_was_asked_for(post, tmp_path):
    assert run(tmp_path) == run(tmp_path, "--quick", "--model", "tiny") == 0
    plain, quick = post.settings
    assert (plain.model, plain.quick, str(plain.device)) == (None, False, "cpu")
    assert (quick.model, quick.quick) == ("tiny", True)
    assert list(plain.stages.values()) == list(LADDER) and "s01" in plain.stages


def test_the_files_and_a_summary(post, tmp_path, capsys):
    assert run(tmp_path, "--quick") == 0
    stem = tmp_path / "reports" / "000-2026-01-31"
    said = capsys.readouterr()
    assert said.out.splitlines()[1] == "exact facts: 1 equal, 1 explained, 0 different"
    assert "completion tok/s 408.43 61.17" in " ".join(said.out.split())
    assert "not run: device spans: needs an NVIDIA GPU" in said.out
    assert said.out.splitlines()[-2:] == [f"written: {stem}{end}" for end in (".json", ".md")]
    assert said.err.endswith(" s  counting\n")
    assert json.loads(stem.with_suffix(".json").read_text())["post"] == "000"
    command = f"{COMMAND} --quick"
    assert stem.with_suffix(".md").read_text() == to_markdown(REPORT, command)


def test_a_run_of_the_same_day_replaces(post, tmp_path):
    run(tmp_path)
    post.report = replace(REPORT, recorded_at="2026-01-31T00:00:00+00:00", commit=None)
    run(tmp_path)
    assert len(list((tmp_path / "reports").iterdir())) == 2
    assert "Commit: unknown" in (tmp_path / "reports" / "000-2026-01-31.md").read_text()


def test_a_different_fact_is_named_and_fails(post, tmp_path, capsys):
    post.report = BAD_REPORT
    assert run(tmp_path) == 1
    assert (
        "DIFFERENT: Rebuilds: a|b <rows>: post x & y, here 768; not explained: the rule (one table) gives 0"
        in capsys.readouterr().out.splitlines()
    )
    assert len(list((tmp_path / "reports").iterdir())) == 2


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "error: no post named, allowed: 000, 001, 002, 003, 004 (with make: POST=000)"),
        (["0000"], "error: unknown post '0000' (nearest: 000), allowed: 000, 001, 002, 003, 004"),
        (["000", "--device", "gpu"], "error: --device 'gpu' is not a device: "),
        (["000", "--device", "cuda:99"], "error: --device cuda:99: not on this machine, which has: cpu"),
        (["000", "--model", "random:gtp2"], "error: unknown shape 'random:gtp2', allowed: random:"),
        (["000", "--model", "./nowhere"], "error: no such folder: './nowhere'"),
    ],
    ids=lambda value: " ".join(value) or "none" if isinstance(value, list) else "",
)
def test_bad_arguments_are_one_line(post, tmp_path, capsys, arguments, line):
    assert main(["reproduce", *arguments, "--out", str(tmp_path / "reports")]) == 2
    said = capsys.readouterr().err
    assert said.startswith(line) and len(said.splitlines()) == 1
    assert not post.settings and not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_refused_before_the_run(post, tmp_path, capsys):
    (tmp_path / "reports").write_text("a file")
    assert run(tmp_path) == 2
    assert capsys.readouterr().err.startswith(f"error: --out {tmp_path / 'reports'}: must be a folder")
    assert not post.settings


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (ModelLoadError("random:huge needs 9 bytes, 8 are free"), 2, "error: random:huge needs 9 bytes, 8 are free"),
        (ContenderFailed("s01 failed in the prefill"), 1, "error: s01 failed in the prefill"),
        (KeyboardInterrupt(), 130, "interrupted: nothing was written"),
    ],
    ids=["does-not-fit", "stage-fails", "ctrl-c"],
)
def test_what_goes_wrong_in_the_run(post, tmp_path, capsys, error, status, line):
    def fails(setting):
        raise error

    post.reproduce = fails
    assert run(tmp_path) == status
    assert capsys.readouterr().err == line + "\n"
    assert not list((tmp_path / "reports").iterdir())


def test_help_names_every_post(capsys):
    with pytest.raises(SystemExit):
        main(["reproduce", "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  00")] == ["000", "001", "002", "003", "004"]


def test_a_report_that_cannot_be_written_is_shown_all_the_same(post, tmp_path, capsys, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("course.cli.reproduce.write", full)
    assert main(["reproduce", "000", "--out", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert "equal" in out and "written" not in out
    assert err.splitlines()[-1] == "error: [Errno 28] No space left on device"
