"""Misuse of the command: one line that names what is wrong, the right exit code, no traceback, nothing lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli import runs
from harness.cli.main import main
from harness.cli.usage import Usage, check_output
from harness.yaml_document import BYTES_MAX
from results.run.directory import RunDirectory

_BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)

SPECS = {
    "5,000 lists in each other": ("[" * 5000, "more than 50 deep"),
    "a bomb of aliases": (_BOMB, "more than 200000 values"),
    "more aliases than any spec has": ("a: &a x\nb: [" + "*a, " * 1500 + "x]", "more than 1000 aliases"),
    "an alias to what holds it": ("faults: &a [*a]", "refers to what it is part of"),
    "a file too large": ("#" * (BYTES_MAX + 1), f"more than {BYTES_MAX} bytes"),
    "a rate without end": ("rate: .inf", "rate: inf is not a finite number"),
    "a rate that is no number": ("rate: .nan", "rate: nan is not a finite number"),
    "a time limit without end": ("time_limit: .inf", "time_limit: inf is not a finite number"),
    "a recovery limit without end": ("recovery_limit: .inf", "recovery_limit: inf is not a finite number"),
    "a time limit of 400 digits": (f"time_limit: {'9' * 400}s", "time_limit: "),
    "a seed of 5,000 digits": (f"seed: {'9' * 5000}", "seed: a number of 5000 characters, 40 is the limit"),
    "a seed of 5,000 hexadecimal digits": (f"seed: 0x{'f' * 5000}", "seed: a number of 5002 characters"),
    "a seed beyond 64 bits": ("seed: 1000000000000000000000", "seed: 1e+21 is more than the limit of"),
    "a million brokers": ("brokers: 1000000", "brokers: 1e+06 is more than the limit of 100"),
    "a million producers": ("producers: 1000000", "producers: 1e+06 is more than the limit of 1000"),
    "a million consumers": ("consumers: 1000000", "consumers: 1e+06 is more than the limit of 1000"),
    "a million controllers": ("controllers: 1000000", "controllers: 1e+06 is more than the limit of 25"),
    "a hundred million partitions": ("partitions: 100000000", "partitions: 1e+08 is more than the limit of 10000"),
    "a key twice": ("brokers: 3\nbrokers: 4", "brokers: is given twice, first in line 1"),
    "a key twice, once in quotes": ('"brokers": 3\nbrokers: 4', "brokers: is given twice"),
    "a number twice as a key": ("settings: {1: a, +1: b}", "+1: is given twice"),
    **{
        f"a number that versions of YAML read differently: {number}": (
            f"{field}: {number}",
            f"spec.yaml:1: {field}: versions of YAML read {number} differently; write a number in decimal digits",
        )
        for field, number in [
            ("seed", "010"),
            ("seed", "-010"),
            ("seed", "1_0"),
            ("seed", "0b11"),
            ("seed", "0x1_0"),
            ("seed", "0x_1"),
            ("seed", "12:30"),
            ("time_limit", "12:30"),
            ("time_limit", "1:30.5"),
            ("time_limit", "1_0.5"),
            ("time_limit", "1._5"),
        ]
    },
    "a name with a null byte": ('name: "a\\0b"', "name: "),
    "a name with half a surrogate pair": ('name: "\\ud800"', "name: "),
    "a name of 5,000 characters": (f"name: {'x' * 5000}", "name: "),
    "a tag that its value does not fit": ("name: !!timestamp x", "a value does not fit its tag"),
    "a truth that is none": ("brokers: !!bool x", "a value does not fit its tag"),
    "a fault without end": ("faults: [{at: 1, for: .inf, fault: kill, nodes: [b1]}]", "faults[0].for: inf"),
    "a clock of no rate": ("faults: [{at: 1, for: 1, fault: clock, nodes: [b1], rate: .nan}]", "faults[0].rate: nan"),
    "a fault named by a list": ("faults: [{at: 1, for: 1, fault: [x]}]", "faults[0].fault: ['x'] is not one of"),
    "a family named by a list": ("faults: [[a]]", "faults: ['a'] is not one of"),
    "a setting beyond 64 bits": ("settings: {min.insync.replicas: 99999999999999999999}", "is more than 92233"),
    "a patience of three thousand years": (
        "settings: {replica.lag.time.max.ms: 99999999999999}",
        "settings.replica.lag.time.max.ms: 99999999999999 is more than the limit of 604800000",
    ),
    "a Python object": ("name: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
    "bytes that are no text": ("\udcff", "cannot be read"),
    "two documents": ("brokers: 3\n---\nbrokers: 3", "expected a single document"),
}


@pytest.mark.parametrize(("text", "words"), SPECS.values(), ids=SPECS.keys())
def test_a_spec_that_cannot_be_used_is_one_line_and_64(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, store = tmp_path / "spec.yaml", tmp_path / "store"
    spec.write_text(text, errors="surrogateescape")
    assert main(["run", str(spec), "--store", str(store)]) == 64
    line = capsys.readouterr().err
    assert line.startswith(f"faultline run: {spec}")
    assert words in line
    assert line.count("\n") == 1
    assert not store.exists()


FAILS = "idempotent-retry-after-a-fail-over"
NOTHING = ["--seeds", "0", "--mutant", "none", "--repeats", "0"]
OPTIONS: dict[str, tuple[list[str], int]] = {
    "a seed of 5,000 digits": (["run", "--seed", "9" * 5000], 64),
    "a seed of 400 digits": (["run", "--seed", "9" * 400], 64),
    "a rate without end": (["run", "--rate", "inf"], 64),
    "a time limit without end": (["run", "--time-limit", "inf"], 64),
    "digits of another script": (["run", "--time-limit", "²"], 64),
    "a million brokers": (["run", "--brokers", "1000000"], 64),
    "a directory for a spec": (["run", "/"], 64),
    "a null byte in a name": (["run", "a\0b.yaml"], 64),
    "a link to itself": (["run", "LOOP"], 64),
    "a device for a store": (["run", "--time-limit", "1", "--store", "/dev/null"], 3),
    "a store in a link to itself": (["run", "--time-limit", "1", "--store", "LOOP/x"], 3),
    "a store of nobody's home": (["run", "--time-limit", "1", "--store", "~nobody-of-this-name/x"], 3),
    "a store whose path is not UTF-8": (["run", "--time-limit", "1", "--store", "STORE\udce9"], 3),
    "a store to add to whose path is not UTF-8": (["store", "add", "/dev/null", "--store", "STORE\udce9"], 3),
    "a directory that is no run": (["check", "/"], 64),
    "a device for a run": (["check", "/dev/null"], 64),
    "no run to replay": (["replay", "LOOP"], 64),
    "a device to add": (["store", "add", "/dev/null", "--store", "STORE"], 64),
    "a device for a store to list": (["store", "ls", "--store", "/dev/null"], 64),
    "a suite outside the store": (["store", "show", "../..", "--store", "STORE"], 64),
    "a report of nothing": (["report", "nothing", "--store", "STORE"], 64),
    "a device for a store to serve": (["serve", "--store", "/dev/null", "--port", "0"], 64),
    "a directory for a suite": (["suite", "/", "--store", "STORE"], 64),
    "a suite of no such name": (["suite", "no-such-suite", "--store", "STORE"], 64),
    "fewer than no seeds": (["suite", "smoke", "--seeds", "-1", "--store", "STORE"], 64),
    "no processes": (["torture", "--jobs", "0", "--store", "STORE"], 64),
    "a directory that is not there to shrink into": (["shrink", FAILS, "--runs", "1", "--out", "STORE/no/x"], 64),
    "a directory to shrink into": (["shrink", FAILS, "--runs", "1", "--out", "/"], 64),
    "a directory that is not there for the results": (["torture", *NOTHING, "--out", "STORE/no/x"], 64),
    "a device for a comparison": (["compare", "acks-and-isr", "--out", "/dev/null/x", "--store", "STORE"], 64),
    "a link to itself for a comparison": (["compare", "acks-and-isr", "--out", "LOOP", "--store", "STORE"], 64),
    "a directory that is not there for measurements": (["incident", "run", FAILS, "--record", "STORE/no/x"], 64),
    "a directory for outcomes": (["incident", "run", FAILS, "--outcomes", "/"], 64),
    "no Spark master": (["suite", "smoke", "--master", "nope", "--store", "STORE"], 64),
    "no Spark master, without a thread": (["compare", "acks-and-isr", "--master", "local[0]", "--store", "STORE"], 64),
    "no Spark master to check on": (["store", "check", "--master", "nope", "--store", "STORE"], 64),
    "no Spark master to explore on": (["explore", "quorum", "--master", "http://night", "--json"], 64),
    "a Spark master that nobody is": (["suite", "smoke", "--master", "spark://localhost:9", "--store", "STORE"], 3),
    "a hunt from a seed below all": (["hunt", "--runs", "1", "--seed", "-1", "--corpus", "STORE"], 64),
    "a hunt from a seed of 30 digits": (["hunt", "--runs", "1", "--seed", "9" * 30, "--corpus", "STORE"], 64),
    "a measurement of fewer than no operations": (["bench", "--part", "checking", "--largest", "-1"], 64),
    "a torture without a run": (["torture", "--seeds", "0", "--mutant", "none", "--store", "STORE"], 64),
    "no seed to find a mutant with": (["torture", "--seeds", "0", "--mutant-seeds", "0", "--store", "STORE"], 64),
    "a suite of no such name to check": (["store", "check", "nope", "--store", "STORE"], 64),
    "a directory that is not there for a report": (["report", "nothing", "--out", "STORE/no/x"], 64),
    "a directory that is not there for a trend": (["trend", "nothing", "--out", "STORE/no/x"], 64),
    "too many arguments": (["check", "a", "b"], 64),
}


@pytest.mark.parametrize(("arguments", "code"), OPTIONS.values(), ids=OPTIONS.keys())
def test_options_that_cannot_be_used_are_one_line(
    arguments: list[str], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    places = {"LOOP": str(tmp_path / "loop"), "STORE": str(tmp_path / "store")}
    for word, place in places.items():
        arguments = [argument.replace(word, place) for argument in arguments]
    assert main(arguments) == code
    output = capsys.readouterr()
    assert output.err.count("\n") == 1
    assert "error of Faultline itself" not in output.err
    assert output.out == ""
    assert not list(tmp_path.glob("store*/suites/*")), "nothing that a suite could be resumed from"


def test_an_error_that_nobody_foresaw_is_one_line_3_and_a_file_of_details(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unforeseen(options: object) -> None:
        raise KeyError("the\nkey")

    monkeypatch.setattr(runs, "_spec", unforeseen)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main(["run", "--seed", "7"]) == 3
    line = capsys.readouterr().err
    (details,) = tmp_path.glob("faultline-error-*.txt")
    assert line == f"faultline: an error of Faultline itself, KeyError: 'the\\nkey' (details: {details})\n"
    assert "faultline run --seed 7" in details.read_text()
    assert "Traceback" in details.read_text()


def test_a_check_keeps_its_verdict_when_only_the_report_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--without", "idempotent_dedupe", "--seed", "0", "--time-limit", "20", "--store", str(tmp_path)]
    code = main(["run", *options])
    assert code in (0, 1)

    def unwritable(*arguments: object) -> None:
        raise TypeError("no page")

    monkeypatch.setattr("results.pages.report.write_report", unwritable)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    capsys.readouterr()
    assert main(["check", str(tmp_path / "latest")]) == code
    output = capsys.readouterr()
    assert "linearizability" in output.out
    assert output.err.startswith("faultline: an error of Faultline itself, TypeError: no page (details: ")
    assert output.err.endswith("; the verdict stands\n")


def test_a_run_that_its_environment_refuses_leaves_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.socket")
    assert main(["run", "--environment", "docker", "--time-limit", "1", "--store", str(tmp_path / "store")]) == 3
    assert capsys.readouterr().err.splitlines()[-1].startswith("faultline: no Docker engine answers")
    assert list((tmp_path / "store").iterdir()) == []


def test_a_reader_that_leaves_costs_the_output_and_not_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich by itself would end with 1, which is the code of `invalid`."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", buffering=1) as nobody:
        monkeypatch.setattr(sys, "stdout", nobody)
        assert main(["rules"]) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_under_the_output_is_one_line_and_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(["rules"]) == 3
    line = capsys.readouterr().err
    assert line.startswith("faultline: ")
    assert line.endswith("No space left on device\n")
    assert "error of Faultline itself" not in line


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(("arguments", "code"), [(["run", "no-such-spec"], 64), (["run", "--time-limit", "1"], 3)])
def test_an_error_that_cannot_be_written_keeps_its_code(
    arguments: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open("/dev/full", "w", buffering=1) as full:
        monkeypatch.setattr(sys, "stderr", full)
        assert main([*arguments, "--store", str(tmp_path)]) == code


def test_an_output_may_be_a_file_that_the_shell_has_opened(tmp_path: Path) -> None:
    """`--json /dev/stdout > FILE`: nothing is made in /dev, where nobody but root could."""
    script = (
        "import os; from pathlib import Path; from harness.cli.usage import check_output; "
        "os.access = lambda path, mode: str(path) == '/dev/stdout'; "
        "check_output('suite', '--json', Path('/dev/stdout'))"
    )
    with (tmp_path / "out.json").open("w") as out:
        assert subprocess.run([sys.executable, "-c", script], stdout=out, check=False).returncode == 0


def test_an_output_that_is_a_link_needs_the_directory_of_its_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("links", "files"):
        (tmp_path / name).mkdir()
    link = tmp_path / "links" / "out.json"
    link.symlink_to(tmp_path / "files" / "out.json")
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) == tmp_path / "files")
    check_output("suite", "--json", link)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) == tmp_path / "links")
    with pytest.raises(Usage, match=f"out.json cannot be written: {tmp_path / 'files'} is not a writable directory"):
        check_output("suite", "--json", link)


def test_a_run_needs_no_home_no_terminal_and_no_locale(tmp_path: Path) -> None:
    bare = {"TERM": "dumb", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "harness",
            "run",
            "--seed",
            "1",
            "--time-limit",
            "1",
            "--store",
            str(tmp_path / "store"),
        ],
        env={**bare, "PATH": os.environ["PATH"]},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.isascii()
    assert b"Traceback" not in ended.stderr


def test_a_run_of_real_machines_is_not_replayed_and_the_command_that_repeats_its_faults_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = RunDirectory.create(tmp_path, "real", 3)
    directory.spec_path.write_text("environment: docker\nseed: 3\nfaults: none\n")
    assert main(["replay", str(directory.path)]) == 3
    assert capsys.readouterr().err.endswith(f"makes another run with its faults: faultline run {directory.spec_path}\n")
