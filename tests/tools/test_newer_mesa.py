"""A newer Mesa is promised to the tests where it is there or could be had, and CI is told where it could not be had."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cards import radv

SCRIPT = Path(__file__).parents[2] / "tools" / "newer_mesa.sh"
STUBS = """
set -euo pipefail
level=test state=. log=log
say() { echo "said: $*"; }
lacks() { echo "lacks: $*"; }
. "$1"
debian() { [ "$system" = "$1" ]; }
debian_sites() { printf "http://%s\n" mirror another archive; }
answers() { [ "$network" = yes ]; }
unpack_newer_mesa() {
    echo "asked: $1"
    [ "$1" = "$has" ] || return 1
    mkdir -p .drivers/mesa/usr/share/vulkan/icd.d
    touch .drivers/mesa/usr/share/vulkan/icd.d/radeon_icd.x86_64.json
}
get_newer_mesa
"""


@pytest.mark.parametrize(("system", "network", "has", "asked", "promised", "lacking"), [
    ("bookworm", "yes", "http://mirror", 1, True, False),
    ("bookworm", "yes", "http://archive", 3, True, False),
    ("bookworm", "yes", "nobody", 3, True, True),
    ("bookworm", "no", "nobody", 3, False, False),
    ("noble", "yes", "http://mirror", 0, False, False),
])
def test_a_newer_mesa_is_promised_where_it_could_be_had(
    system: str, network: str, has: str, asked: int, promised: bool, lacking: bool, tmp_path: Path,
) -> None:
    (tmp_path / "newer-mesa").touch()  # of an earlier run
    environment = {"PATH": "/usr/bin:/bin", "system": system, "network": network, "has": has}
    done = subprocess.run(["bash", "-c", STUBS, "bash", SCRIPT], cwd=tmp_path, env=environment, capture_output=True,
                          text=True, check=True)
    assert done.stdout.count("asked: ") == asked
    assert (tmp_path / "newer-mesa").exists() == promised
    assert ("lacks: " in done.stdout) == lacking


def test_a_promised_mesa_that_is_not_there_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(radv, "is_new", lambda program: False)
    monkeypatch.setenv(radv.PROMISED, "1")
    with pytest.raises(pytest.fail.Exception, match="AG_TEST_NEWER_MESA=1 promises a newer Mesa"):
        radv.without_newer(Path())
    monkeypatch.delenv(radv.PROMISED)
    with pytest.raises(pytest.skip.Exception, match="there is no newer Mesa beside the installed one"):
        radv.without_newer(Path())
