# How a newer Mesa than Debian 12's comes into .drivers/mesa, for the tests that ask its compilers. Sourced by setup.sh
# from the repository root; defines functions only, which use its say, lacks, level, log and state.
# shellcheck shell=bash disable=SC2154

debian() { (. /etc/os-release 2>/dev/null && [ "${VERSION_CODENAME:-}" = "$1" ]); }

# RADV and lavapipe as newer systems have them, out of Debian 12's own backports; nothing is installed. Apt gets a
# folder of its own for the list of packages.
unpack_newer_mesa() {  # unpack_newer_mesa SITE
    local apt=$PWD/.drivers/apt deb new=.drivers/mesa.new
    rm -rf "$apt" $new
    mkdir -p "$apt"/lists/partial "$apt"/archives/partial $new
    echo "deb $1 bookworm-backports main" >"$apt"/sources.list
    local own=(-qq -o "Dir::Etc::SourceList=$apt/sources.list" -o Dir::Etc::SourceParts=/dev/null
               -o "Dir::State::Lists=$apt/lists" -o "Dir::Cache=$apt" -o APT::Update::Error-Mode=any
               -o Acquire::Retries=3 -o Acquire::http::Timeout=30)
    case $1 in *archive*) own+=(-o Acquire::Check-Valid-Until=false) ;; esac
    (cd "$apt" && apt-get "${own[@]}" update &&
        apt-get "${own[@]}" download mesa-vulkan-drivers libdrm2 libdrm-amdgpu1) >>"$log" 2>&1 </dev/null || return
    for deb in "$apt"/*.deb; do dpkg-deb --extract "$deb" $new || return; done
    rm -rf "$apt" .drivers/mesa
    mv $new .drivers/mesa  # whole, or not at all
}

newer_mesa() { [ -n "$(find .drivers/mesa/usr/share/vulkan/icd.d -name 'radeon_icd*.json' 2>/dev/null)" ]; }

debian_sites() {  # those of the system's own packages, a line each
    apt-get indextargets --format '$(SITE) $(CODENAME)' 2>>"$log" | awk '$2 == "bookworm" && !seen[$1]++ {print $1}'
}

answers() {  # answers SITE
    /usr/lib/apt/apt-helper -o Acquire::Retries=1 -o Acquire::http::Timeout=15 \
        download-file "$1/dists/bookworm/InRelease" $state/release >>"$log" 2>&1
}

# The tests need it where it can be had: $state/newer-mesa promises it to them (AG_TEST_NEWER_MESA in test.sh). A mirror
# may lack backports, so all sites of the system are asked.
get_newer_mesa() {
    local site own=
    if [ "$level" != test ]; then return; fi
    rm -f $state/newer-mesa
    if ! debian bookworm || ! command -v apt-get >/dev/null; then return; fi  # newer systems have a newer one installed
    if ! newer_mesa; then
        say "unpacking a newer Mesa, whose compilers the tests ask, too"
        for site in $(debian_sites); do
            own=${own:-$site}
            if unpack_newer_mesa "$site"; then break; fi
        done
    fi
    if newer_mesa || { [ -n "$own" ] && answers "$own"; }; then touch $state/newer-mesa; fi
    if newer_mesa; then return; fi
    if [ -e $state/newer-mesa ]; then
        lacks "no newer Mesa, although $own answers, so only the installed one compiles kernels for chips of AMD" \
            "(all of it: $log). To get it: make setup-test on Debian 12 with bookworm-backports in reach"
    else
        say "no newer Mesa, as there is no network, so only the installed one compiles kernels for chips of AMD"
    fi
}
