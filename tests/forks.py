"""Tests in several processes, for less than those of pytest-xdist cost: `pytest tests --forks 3`.

All files are imported once, and the processes are forked afterwards. Each runs the tests of one file after the other,
the first that none has begun, and sends the reports to the process that they come from.
"""

import gc
import os
from multiprocessing import get_context
from multiprocessing.connection import wait

import processes
import pytest


def pytest_addoption(parser):
    parser.addoption("--forks", type=int, default=0, help="run tests in so many processes, forked after all imports")


class Sender:
    "Sends the reports of a forked process."

    def __init__(self, config, results):
        self.config, self.results = config, results

    def pytest_runtest_logreport(self, report):
        self.results.put(self.config.hook.pytest_report_to_serializable(config=self.config, report=report))


def run_files(session, files: list[list], todo, results):
    "What a forked process does."
    plugins = session.config.pluginmanager
    plugins.unregister(name="terminalreporter")
    plugins.register(Sender(session.config, results))
    capture = plugins.getplugin("capturemanager")
    capture.stop_global_capturing()  # into a file that all processes would share
    capture.start_global_capturing()
    processes.begin_own_server()
    at = todo.get()
    while at is not None:
        *before, last = files[at]
        for item, following in zip(before, files[at][1:]):
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        at = todo.get()  # fixtures of the session stay until the last test
        session.config.hook.pytest_runtest_protocol(item=last, nextitem=None if at is None else files[at][0])
    results.put(os.getpid())


def pytest_runtestloop(session):
    config = session.config
    if not getattr(config.option, "forks", 0) or config.option.collectonly or session.testsfailed:
        return None
    files = {}
    for item in session.items:
        files.setdefault(item.path, []).append(item)
    files, fork = list(files.values()), get_context("fork")
    todo, results = fork.SimpleQueue(), fork.SimpleQueue()
    for at in (*range(len(files)), *[None] * config.option.forks):
        todo.put(at)
    processes.import_all()
    processes.verify_once()
    processes.load_once()
    processes.bind_once()
    processes.connect_once()
    processes.context()  # the server of which those of the processes are forked
    config._tmp_path_factory.getbasetemp()
    started = [fork.Process(target=run_files, args=(session, files, todo, results)) for _ in range(config.option.forks)]
    gc.collect()
    gc.freeze()
    for process in started:
        process.start()
    gc.unfreeze()
    running = {p.pid: p.sentinel for p in started}
    while running:
        if results._reader not in wait([results._reader, *running.values()]):
            pytest.exit("a process of tests has died", 3)
        if isinstance(found := results.get(), int):
            running.pop(found)
        else:
            report = config.hook.pytest_report_from_serializable(config=config, data=found)
            config.hook.pytest_runtest_logreport(report=report)
    return True
