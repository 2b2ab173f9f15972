"""Let each worker of pytest-xdist import a file of tests when it runs it.

Used with `pytest -p tests.collect_by_file -n 3`.

Without this plugin every worker imports all files before the first test: of `make test`, a minute
of processor time. Here each file is one item to xdist, and the worker that runs it puts the file's
tests in its place. Tests are reported by their own names. If a worker dies, the test that it ran
fails, and another worker runs the rest of that file.
"""

import gc
import shutil
import tempfile
from collections.abc import Generator, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler.loadfile import LoadFileScheduling

# These take longest, mostly waiting for servers (`--durations`). They start first, because a long
# file that starts last keeps one worker busy while the others are done.
LONG_FILES = (
    "tests/api/http/test_faults.py",
    "tests/realtime/test_scenes.py",
    "tests/clients/",
    "tests/serve/",
    "tests/contract/test_readme.py",
    "tests/web/",
    "tests/backends/test_",
    "tests/api/routes/test_schemathesis.py",
    "tests/models/test_tts_stream_text.py",
    "tests/backends/torch/test_triton_",
    "tests/api/routes/test_spoken_chat.py",
    "tests/engine/",
    "tests/sandbox/",
    "tests/recording/",
)

# which tests a file began, one a line: those of a worker that died are not run again
JOURNALS = "journals"


class WholeFile(pytest.Item):
    """Stands for all tests of a file that is not imported yet."""

    def runtest(self) -> None:
        raise AssertionError("pytest_runtest_protocol runs the tests of the file instead")

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, self.nodeid


def place_in_line(file: WholeFile) -> int:
    """Put long files first; others keep their order."""
    long = (number for number, start in enumerate(LONG_FILES) if file.nodeid.startswith(start))
    return next(long, len(LONG_FILES))


class FileToImport(pytest.File):
    """Has the one item `WholeFile`."""

    def collect(self) -> Iterator[pytest.Item]:
        yield WholeFile.from_parent(self, name="all")


def pytest_configure(config: pytest.Config) -> None:
    """Register the part of this process: it starts workers, is one of them, or does without."""
    if config.getoption("lf") or config.getoption("failedfirst") or config.getoption("newfirst"):
        raise pytest.UsageError(
            "tests.collect_by_file does not know which tests failed: run without -p"
        )
    if any("::" in argument for argument in config.args):
        raise pytest.UsageError(
            "tests.collect_by_file takes files, not single tests: run without -p"
        )
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(Worker(Path(config.workerinput[JOURNALS])))
    elif config.getoption("numprocesses"):
        journals = Path(tempfile.mkdtemp(prefix="izwi-tests-"))
        config.pluginmanager.register(Controller(journals))


def journal(journals: Path, file: str) -> Path:
    return journals / file.replace("/", ".")


def begun_tests(journals: Path, file: str) -> list[str]:
    path = journal(journals, file)
    return path.read_text().splitlines() if path.exists() else []


class Controller:
    """The part in the process that starts workers and prints."""

    def __init__(self, journals: Path) -> None:
        self.journals = journals
        self.session: pytest.Session | None = None
        self.num_files = 0
        self.begun: set[str] = set()
        self.reported: set[str] = set()

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self.session = session

    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[JOURNALS] = str(self.journals)

    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> "FileScheduling":
        config.option.loadscopereorder = False
        return FileScheduling(config, log)

    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self.num_files = len(ids)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Have the share of files printed as progress: the number of tests shows at the end."""
        self.reported.add(report.nodeid)
        self.begun.add(report.nodeid.split("::")[0])
        tests_per_file = len(self.reported) / len(self.begun)
        assert self.session is not None
        self.session.testscollected = max(1, round(self.num_files * tests_per_file))

    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport) -> None:
        """Name the test that a worker ran when it died, not only its file."""
        file = crashitem.split("::")[0]
        report.nodeid = begun_tests(self.journals, file)[-1]
        report.longrepr = f"{report.longrepr}: {report.nodeid}"

    def pytest_unconfigure(self) -> None:
        shutil.rmtree(self.journals, ignore_errors=True)


class FileScheduling(LoadFileScheduling):
    """Give each worker one file after the other, and those of a worker that died to others."""

    def remove_node(self, node: Any) -> str | None:
        """Forget what the worker has finished: xdist gives it to others, too, which then hang."""
        work = self.assigned_work[node]
        self.assigned_work[node] = {
            file: ran for file, ran in work.items() if not all(ran.values())
        }
        return super().remove_node(node)

    def _reschedule(self, node: Any) -> None:
        """Queue one file behind the one that runs; a worker begins when it knows what follows."""
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)  # without any left, shuts the worker down


class Worker:
    """The part in each worker."""

    def __init__(self, journals: Path) -> None:
        self.journals = journals

    def pytest_pycollect_makemodule(self, module_path: Path, parent: Any) -> FileToImport:
        return FileToImport.from_parent(parent, path=module_path)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None]:
        """Keep whole files from options that choose among tests, such as `-k`."""
        files = [item for item in items if isinstance(item, WholeFile)]
        items[:] = [item for item in items if not isinstance(item, WholeFile)]
        yield
        items[:0] = sorted(files, key=place_in_line)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        if not isinstance(item, WholeFile):
            return None
        session, place = item.session, item.session.items.index(item)
        tests = self.tests_of(item)
        if not tests:  # the last test left up what it has in common with this file
            session._setupstate.teardown_exact(nextitem)
        for test, following in zip_longest(tests, tests[1:], fillvalue=nextitem):
            session.items[place] = test  # xdist compares names of reports with it
            self.note(item, test.nodeid)
            item.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
            if session.shouldfail or session.shouldstop:
                break
        session.items[place] = item
        return True

    def tests_of(self, item: WholeFile) -> list[pytest.Item]:
        """Import a file and return its tests that no worker has begun."""
        file, session = item.nodeid.split("::")[0], item.session
        begun = begun_tests(self.journals, file)
        if begun[-1:] == [file]:
            return []  # importing it killed a worker
        self.note(item, file)
        assert item.parent is not None
        assert item.parent.parent is not None
        gc.disable()
        module = pytest.Module.from_parent(item.parent.parent, path=item.path)
        tests = list(session.genitems(module))
        session.config.hook.pytest_collection_modifyitems(
            session=session, config=session.config, items=tests
        )
        gc.collect()
        gc.freeze()  # modules stay to the end
        gc.enable()
        return [test for test in tests if test.nodeid not in begun]

    def note(self, item: WholeFile, nodeid: str) -> None:
        with journal(self.journals, item.nodeid.split("::")[0]).open("a") as lines:
            lines.write(f"{nodeid}\n")
