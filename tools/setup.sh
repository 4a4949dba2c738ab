#!/usr/bin/env bash
# Prepares the repository: system packages where apt can install them, .venv, the Vulkan extension, the kernels. The
# argument demo installs what a training needs and this processor's kernels; dev adds development tools and kernels for
# all processors, test the drivers and tools of the tests. A larger .venv stays. Quick when there is nothing to do.
# What cannot be had is said in one line each, also kept in .make/missing; only Python itself is indispensable.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/vulkan.sh
. tools/newer_mesa.sh

level=${1:?demo, dev or test}
python=${PYTHON:-python3}
state=.make
log=$state/setup.log
missing=$state/missing

say()   { printf 'ag: %s\n' "$*"; }
lacks() { say "$*" | tee -a "$missing"; }
die()   { say "$*" >&2; exit 1; }
step()  { say "$* (after $SECONDS s)"; }

pip() {  # names what it downloads and when it compiles
    .venv/bin/python -m pip install --disable-pip-version-check --progress-bar off "$@" 2>&1 </dev/null | tee -a "$log" |
        sed -un -e 's/^ *\(Downloading\|Using cached\) \([^-]*-[^-]*\)-.*\.whl (\(.*\))$/ag:   \1 \2, \3/p' \
            -e "s/^ *Building editable for .* started\$/ag:   compiling the Vulkan extension/p"
}

newer() {  # newer STAMP FIND-ARGUMENTS...: nothing that find lists changed after the stamp
    [ -e "$1" ] && [ -z "$(find "${@:2}" -newer "$1" -print -quit)" ]
}

# --- system packages ------------------------------------------------------------------------------------------------

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }
can_apt() { command -v apt-get >/dev/null && as_root true 2>/dev/null; }

apt_get() {  # a mirror that does not answer costs half a minute, not ten
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=1 -o Acquire::http::Timeout=15 \
        -o DPkg::Lock::Timeout=300 "$@" >>"$log" 2>&1 </dev/null
}

apt_install() {  # what fails here is reported by report_missing
    say "installing with apt: $*"
    local install=(apt_get install -y --no-install-recommends "$@")
    "${install[@]}" || { apt_get update && "${install[@]}"; } || true
}

# One piece per line: probe (has_<probe> below), apt package, what is missing and what follows from it.
pieces() {
    cat <<END
compiler|g++|no compiler, so neither the Vulkan extension nor the CPU's kernels can be built and training runs on the CPU with numpy
headers|libvulkan-dev|no Vulkan headers, so the Vulkan extension cannot be built and training runs on the CPU
python_h|$python_package-dev|no Python.h, so the Vulkan extension cannot be built and training runs on the CPU
loader|libvulkan1|no Vulkan loader (libvulkan.so.1), so training runs on the CPU
glslang|glslang-tools|no glslangValidator, so no Vulkan kernels are built and training runs on the CPU
spirv|spirv-tools|no spirv-opt and spirv-val, so no Vulkan kernels are built and training runs on the CPU
END
    if [ "$level" != test ]; then
        echo "driver|mesa-vulkan-drivers|no Vulkan driver, so training runs on the CPU"
        return
    fi
    cat <<END
lavapipe|mesa-vulkan-drivers|no lavapipe driver, so the Vulkan tests lack one of their two devices
validation|vulkan-validationlayers|no Vulkan validation layer, so the synchronization tests do not run
radv|mesa-vulkan-drivers|no RADV driver, so the tests that compile kernels for chips of AMD do not run
metal|spirv-cross|no spirv-cross, so the test that translates kernels to Metal does not run
ip|iproute2|no ip, so the tests that cut links between hosts do not run
arm_gcc|gcc-aarch64-linux-gnu|no compiler for aarch64, so the CPU's kernels are not tried as they are there
arm_libc|libc6-dev-arm64-cross|no C library for aarch64, so the CPU's kernels are not tried as they are there
qemu|qemu-user|no qemu-aarch64, so the CPU's kernels are not tried as they are on aarch64
clang|clang|no clang, so the test that compiles as macOS does does not run
mingw|g++-mingw-w64-x86-64-posix|no MinGW, so the test that compiles as Windows does does not run
END
}

venv_is_ours() { [ "$(cat .venv/made-by 2>/dev/null)" = "$venv_key" ] && .venv/bin/python -c '' 2>/dev/null; }

has_venv()        { venv_is_ours || "$python" -c 'import ensurepip' 2>/dev/null; }
has_compiler()    { command -v g++ >/dev/null; }
has_python_h()    { [ -f "$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ]; }
has_loader()      { "$python" -c 'import ctypes; ctypes.CDLL("libvulkan.so.1")' 2>/dev/null; }
has_glslang()     { command -v glslangValidator >/dev/null; }
has_spirv()       { command -v spirv-opt >/dev/null && command -v spirv-val >/dev/null; }
has_driver()      { any_driver; }
has_lavapipe()    { lavapipe >/dev/null; }
has_validation()  { validation_layer >/dev/null; }
has_radv()        { vulkan_file "icd.d/radeon_icd*.json" >/dev/null; }
has_metal()       { command -v spirv-cross >/dev/null; }
has_ip()          { command -v ip >/dev/null; }
is_arm()          { [ "$(uname -m)" = aarch64 ]; }  # where all tests of kernels are such
has_arm_gcc()     { is_arm || command -v aarch64-linux-gnu-gcc >/dev/null; }
has_arm_libc()    { is_arm || [ -f /usr/aarch64-linux-gnu/include/stdio.h ]; }
has_qemu()        { is_arm || command -v qemu-aarch64 >/dev/null; }
has_clang()       { command -v clang++ >/dev/null; }
has_mingw()       { [ "$(uname -m)" != x86_64 ] || command -v x86_64-w64-mingw32-g++-posix >/dev/null; }
has_headers() {  # where the compiler looks, and native_build.py
    local root
    for root in /usr/include /usr/local/include "${VULKAN_SDK:-}/include"; do
        if [ -f "$root/vulkan/vulkan.h" ]; then return; fi
    done
    return 1
}

install_missing() {
    local probe package text packages=()
    while IFS='|' read -r probe package text; do
        "has_$probe" || packages+=("$package")
    done < <(echo "venv|$python_package-venv|"; pieces)
    if [ ${#packages[@]} -gt 0 ] && can_apt; then apt_install "${packages[@]}"; fi
}

report_missing() {
    local probe package text
    while IFS='|' read -r probe package text; do
        "has_$probe" || lacks "$text. To get it: sudo apt-get install $package"
    done < <(pieces)
}

# --- Python, ag, kernels, drivers -----------------------------------------------------------------------------------

find_python() {
    if ! command -v "$python" >/dev/null && can_apt; then apt_install "$python" "$python-venv" "$python-dev"; fi
    command -v "$python" >/dev/null || die \
        "no $python. To get it: sudo apt-get install python3 python3-venv python3-dev"
    local version
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    case $version in
        3.[1-9][0-9]) ;;
        *) die "$python is Python $version; ag needs 3.10 or newer. Choose one: make demo PYTHON=python3.12" ;;
    esac
    # Past pyenv's slow wrapper, and past .venv itself, which a shell in which it is active would call python3.
    python=$("$python" -c 'import sys; print(sys._base_executable)')
    python_package=python$version
    venv_key="$PWD $python $version"
}

make_venv() {  # anew when the interpreter or the repository's place changed
    if venv_is_ours; then return; fi
    has_venv ||
        die "$python has no ensurepip, so .venv cannot be made. To get it: sudo apt-get install $python_package-venv"
    rm -rf .venv
    step "making .venv"
    "$python" -m venv .venv
    printf '%s\n' "$venv_key" >.venv/made-by
}

has_extension() {
    .venv/bin/python -c 'import ag.engine.backends.vulkan._kp, ag.native._code' 2>/dev/null
}

install_ag() {  # as a path to this folder; compiles the extension into it, see native_build.py
    local can=no what=. stamp=.venv/ag-installed
    if [ "$level" != demo ]; then what='.[dev]' stamp=.venv/dev-installed; fi
    if has_compiler && has_headers && has_python_h; then can=yes; fi
    if { [ $can = no ] || has_extension; } && newer $stamp \
        pyproject.toml setup.py native_build.py ag/native/*.[ch] third_party/kp -type f -not -path '*/__pycache__/*'; then return; fi
    if [ "$level" = demo ]; then
        step "installing ag and the packages that it needs into .venv (20 MB to download)"
    else
        step "installing ag and its development tools into .venv (130 packages, 0.9 GB on disk)"
    fi
    pip -e "$what" || die "pip could not install ag: $(grep -m1 ERROR "$log" || tail -n1 "$log") (all of it: $log)"
    touch .venv/ag-installed $stamp
    step "installed"
    if [ $can = yes ] && ! has_extension; then
        lacks "the extensions could not be built, so training runs on the CPU, or small steps are slower:" \
            "$(cat ag/engine/backends/*/not_built.txt || true)"
    fi
}

build_cpu_kernels() {
    has_compiler || return 0  # already reported
    if [ "$level" = demo ]; then local -x AG_CPU_LEVELS=native; fi
    local said
    if said=$("$python" tools/cpu_kernels.py 2>>"$log"); then
        if [ -n "$said" ]; then step "built the CPU's kernels: $said"; fi
    else
        lacks "$said. To get them: sudo apt-get install g++"
    fi
}

build_kernels() {
    has_glslang && has_spirv || return 0  # already reported
    if [ -e ag/engine/backends/shader/spv/manifest.json ] && newer $state/kernels-built shaders kernels_build.py; then
        return
    fi
    step "building the Vulkan kernels"
    "$python" kernels_build.py >>"$log" 2>&1 || { tail -n 20 "$log" >&2; die "kernels_build.py failed"; }
    touch $state/kernels-built
    step "built the Vulkan kernels: $(du -sh ag/engine/backends/shader/spv | cut -f1)"
}

download_chromium() { (cd .drivers && apt-get -qq download chromium-common </dev/null); }

unpack_swiftshader() {  # the library and its description out of a Debian package of 30 MB; nothing is installed
    local deb
    mkdir -p .drivers/swiftshader
    download_chromium >>"$log" 2>&1 || { apt_get update && download_chromium >>"$log" 2>&1; } || return
    deb=$(echo .drivers/chromium-common_*.deb)
    dpkg-deb --fsys-tarfile "$deb" | tar -x -C .drivers/swiftshader --strip-components=4 --wildcards \
        '*/libvk_swiftshader.so' '*/vk_swiftshader_icd.json'
    rm "$deb"
}

get_swiftshader() {
    if [ "$level" != test ] || swiftshader >/dev/null; then return; fi
    if command -v apt-get >/dev/null; then
        say "unpacking SwiftShader, the tests' second Vulkan driver"
        unpack_swiftshader || true
    fi
    swiftshader >/dev/null || lacks "no SwiftShader, so the Vulkan tests lack one of their two devices." \
        "To get it: make setup-test on Debian with apt reachable (its package chromium-common has the library)"
}

mkdir -p $state
: >"$log"
: >"$missing"
find_python
install_missing
report_missing
build_all() { build_kernels && build_cpu_kernels; }
if has_compiler && has_glslang && has_spirv; then  # else the package's build notes what is missing
    export AG_BUILD_KERNELS=no
    build_all &  # beside pip, which compiles on one core
fi
make_venv
install_ag
if [ -n "${AG_BUILD_KERNELS:-}" ]; then wait $!; else build_all; fi
get_swiftshader
get_newer_mesa
