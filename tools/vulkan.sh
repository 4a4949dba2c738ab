# Where the pieces of Vulkan are that the set-up and the tests look for. Sourced by setup.sh and test.sh from the
# repository root; defines functions only. Each prints a path, or fails when there is nothing to print.
# shellcheck shell=bash

vulkan_file() {  # vulkan_file <folder>/<pattern>: the first match where the Vulkan loader searches
    local root file
    for root in /etc/vulkan /usr/local/share/vulkan /usr/share/vulkan "${HOME:-/nonexistent}/.local/share/vulkan"; do
        for file in "$root"/$1; do  # unquoted: $1 is a pattern
            if [ -f "$file" ]; then printf '%s\n' "$file"; return; fi
        done
    done
    return 1
}

any_driver()       { [ -n "${VK_ICD_FILENAMES:-}${VK_DRIVER_FILES:-}" ] || vulkan_file 'icd.d/*.json' >/dev/null; }
lavapipe()         { vulkan_file "icd.d/lvp_icd.$(uname -m).json" || vulkan_file 'icd.d/lvp_icd.json'; }
validation_layer() { vulkan_file 'explicit_layer.d/VkLayer_khronos_validation.json'; }

swiftshader() {
    local icd=$PWD/.drivers/swiftshader/vk_swiftshader_icd.json
    [ -f "$icd" ] && printf '%s\n' "$icd"
}

test_drivers() { { lavapipe || true; swiftshader || true; } | paste -sd: -; }  # in the form of VK_ICD_FILENAMES
