// Finds the Vulkan loader at run time, so that `import kp` works on a machine without Vulkan and the
// wheel links against nothing but the C and C++ libraries.  Called once per kp::Manager.
#pragma once
#include <stdexcept>
#include <vulkan/vulkan.h>
#ifdef _WIN32
#include <windows.h>
#undef MemoryBarrier // of winnt.h, where vk::MemoryBarrier follows
#else
#include <dlfcn.h>
#endif

namespace kp {

/// The loader's entry point; throws if there is no loader.  The library is never unloaded.
inline PFN_vkGetInstanceProcAddr
loadVulkan()
{
    static PFN_vkGetInstanceProcAddr entry = nullptr;
    if (entry)
        return entry;

    const char* symbol = "vkGetInstanceProcAddr";
#if defined(_WIN32)
    const char* names[] = { "vulkan-1.dll" };
#elif defined(__APPLE__)
    // dlopen does not search Homebrew's prefix or the SDK's /usr/local by itself.
    const char* names[] = { "libvulkan.1.dylib",
                            "libvulkan.dylib",
                            "/usr/local/lib/libvulkan.1.dylib",
                            "/opt/homebrew/lib/libvulkan.1.dylib",
                            "libMoltenVK.dylib" };
#else
    const char* names[] = { "libvulkan.so.1", "libvulkan.so" };
#endif
    for (const char* name : names) {
#ifdef _WIN32
        if (HMODULE library = ::LoadLibraryA(name))
            entry = (PFN_vkGetInstanceProcAddr)(void*)::GetProcAddress(library, symbol);
#else
        if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL))
            entry = (PFN_vkGetInstanceProcAddr)dlsym(library, symbol);
#endif
        if (entry)
            return entry;
    }
    throw std::runtime_error("No Vulkan loader on this machine: install it (Debian: libvulkan1; macOS: "
                             "the Vulkan SDK or MoltenVK; Windows: the graphics driver)");
}

} // namespace kp
