"""What waits for an import: it lets a script look for the module first, as transformers does, and acts once."""

import importlib
import importlib.util
import sys

from rooflight.sources.capture.run.hooks import when_imported


def test_looking_for_a_module_does_not_use_up_what_waits_for_it(tmp_path, monkeypatch):
    (tmp_path / "awaited_module.py").write_text("value = 1")
    monkeypatch.syspath_prepend(tmp_path)
    came = []
    when_imported("awaited_module", lambda: came.append(sys.modules["awaited_module"].value))
    assert importlib.util.find_spec("awaited_module") is not None
    assert importlib.util.find_spec("awaited_module") is not None
    assert came == []
    module = importlib.import_module("awaited_module")
    assert came == [1]
    importlib.reload(module)
    assert came == [1]


def test_an_import_that_fails_is_awaited_further(tmp_path, monkeypatch):
    file = tmp_path / "failing_module.py"
    file.write_text("raise RuntimeError")
    monkeypatch.syspath_prepend(tmp_path)
    came = []
    when_imported("failing_module", lambda: came.append(True))
    try:
        importlib.import_module("failing_module")
    except RuntimeError:
        file.write_text("value = 22222")
        importlib.invalidate_caches()
    importlib.import_module("failing_module")
    assert came == [True]
