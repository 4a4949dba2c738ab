"""The patch applier refuses whatever does not match exactly; the sdist is checked by its hash."""

from pathlib import Path

import pytest

RECIPE = Path(__file__).parents[2] / "third_party" / "kp"

TEXT = "".join(f"line {n}\n" for n in range(1, 21))
GOOD = """A description.

--- a/src/x.txt
+++ b/src/x.txt
@@ -2,3 +2,4 @@ section
 line 2
-line 3
+line three
+line three and a half
 line 4
@@ -19,2 +20,1 @@
 line 19
-line 20
"""
WANT = TEXT.replace("line 3\n", "line three\nline three and a half\n").replace("line 20\n", "")


@pytest.fixture
def diff(monkeypatch):
    """The recipe's module, which lives outside any package."""
    monkeypatch.syspath_prepend(RECIPE)
    import unified_diff

    return unified_diff


@pytest.fixture
def apply(diff, tmp_path):
    (tmp_path / "src").mkdir()

    def run(patch: str, text: str = TEXT) -> str:
        (tmp_path / "src/x.txt").write_bytes(text.encode())
        (tmp_path / "test.patch").write_bytes(patch.encode())
        diff.apply_patch(tmp_path / "test.patch", tmp_path)
        return (tmp_path / "src/x.txt").read_bytes().decode()

    return run


def test_applies(apply):
    assert apply(GOOD) == WANT


def test_git_headers_are_understood(apply):
    header = "diff --git a/src/x.txt b/src/x.txt\nindex 1..2 100644\n"
    assert apply(GOOD.replace("--- a", header + "--- a")) == WANT


@pytest.mark.parametrize("text", [
    TEXT.replace("line 2\n", "line 2 \n"),  # a context line differs
    TEXT.replace("line 3\n", "line 3.\n"),  # a removed line differs
    TEXT.replace("line 19\n", "line 18\n"),  # the second hunk differs
    "new\n" + TEXT,  # all is one line off
    TEXT.replace("\n", "\r\n"),
    "line 1\nline 2\n",  # too short
    "",
])
def test_a_mismatch_is_refused_and_the_file_kept(apply, diff, tmp_path, text):
    with pytest.raises(diff.PatchError, match=r"test.patch: src/x.txt: line \d+ is "):
        apply(GOOD, text)
    assert (tmp_path / "src/x.txt").read_bytes().decode() == text


def test_one_bad_file_keeps_them_all(apply, diff, tmp_path):
    (tmp_path / "y.txt").write_text("other\n")
    bad = "--- a/y.txt\n+++ b/y.txt\n@@ -1 +1 @@\n-not this\n+new\n"
    with pytest.raises(diff.PatchError, match=r"y\.txt: line 1 is 'other', not 'not this'"):
        apply(GOOD + bad)
    assert (tmp_path / "src/x.txt").read_text() == TEXT


@pytest.mark.parametrize(("old", "new", "message"), [
    ("-2,3 +2,4", "-2,4 +2,5", "ends early"),
    ("-2,3 +2,4", "-2,3 +2,3", "more lines"),
    ("-2,3 +2,4", "-2 +2,x", "not a hunk header"),
    ("-19,2 +20,1", "-3,2 +4,1", "overlaps"),
    ("+++ b/src/x.txt", "+++ b/src/y.txt", "expected '--- a/PATH'"),
    ("src/x.txt", "../x.txt", "leaves the tree"),
    ("src/x.txt", "src/z.txt", "there is no file src/z.txt"),
    ("--- a/src/x.txt\n", "", "changes no file"),
    (" line 4\n", "line 4\n", "ends early"),
    ("line 20\n", "line 20\n\\ No newline at end of file\n", "expected '--- a/PATH'"),
    ("-line 20\n", "-line 20\n" + GOOD.split("\n\n")[1].rstrip("\n") + "\n", "twice"),
])
def test_a_malformed_patch_is_refused(apply, diff, tmp_path, old, new, message):
    with pytest.raises(diff.PatchError, match=message):
        apply(GOOD.replace(old, new))
    assert (tmp_path / "src/x.txt").read_text() == TEXT


def test_our_patches_are_well_formed(diff):
    patches = sorted((RECIPE / "patches").glob("*.patch"))
    names = [name for patch in patches for name, _ in diff.parse(diff.read(patch), patch.name)]
    assert len(patches) == 6
    assert len(names) == len(set(names))


def test_our_patches_fit_and_a_wrong_sdist_is_refused(diff, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import recipe

    source = recipe.prepare(tmp_path)
    assert "PYBIND11_MODULE(_kp, m)" in (source / "python/src/main.cpp").read_text()
    (tmp_path / recipe.SDIST.name).write_bytes(b"something else")
    monkeypatch.setattr(recipe, "SDIST", tmp_path / recipe.SDIST.name)
    with pytest.raises(ValueError, match=r"sha256 is .* from git or from PyPI again"):
        recipe.prepare(tmp_path)
