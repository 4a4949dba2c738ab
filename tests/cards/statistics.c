// Compiles compute kernels on the first Vulkan device and prints what the driver tells of the machine code.  radv.py
// builds and runs this with RADV, which compiles for a chip that is not there if RADV_FORCE_FAMILY names one.
//
// Prints the device's name, its driver's version and whether it offers the float modes that kernels ask for; then reads,
// per line
//     FILE BYTES_OF_PUSH_CONSTANTS BINDINGS WORDS WORD...      (the words are specialization constants)
// and answers each with a line of statistics, NAME=VALUE, between tabs; or with the result of Vulkan that is an error.
// With --code, the machine code follows, and a line "end".
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vulkan/vulkan.h>

enum { MOST = 64 };

static VkDevice device;
static PFN_vkGetPipelineExecutableStatisticsKHR statistics_of;
static PFN_vkGetPipelineExecutableInternalRepresentationsKHR representations_of;

static void check(VkResult result, const char *what) {
    if (result == VK_SUCCESS) return;
    fprintf(stderr, "%s: VkResult %d\n", what, result);
    exit(1);
}

static void open_device(void) {
    VkApplicationInfo app = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO, .apiVersion = VK_API_VERSION_1_2};
    VkInstanceCreateInfo made = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO, .pApplicationInfo = &app};
    VkInstance instance;
    check(vkCreateInstance(&made, NULL, &instance), "vkCreateInstance");
    uint32_t count = 1;
    VkPhysicalDevice physical = VK_NULL_HANDLE;
    vkEnumeratePhysicalDevices(instance, &count, &physical);
    if (count == 0) check(VK_ERROR_INITIALIZATION_FAILED, "no device");
    VkPhysicalDeviceFloatControlsProperties floats = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FLOAT_CONTROLS_PROPERTIES};
    VkPhysicalDeviceProperties2 about = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, .pNext = &floats};
    vkGetPhysicalDeviceProperties2(physical, &about);
    const float priority = 1;
    VkDeviceQueueCreateInfo queue = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO, .queueCount = 1,
                                     .pQueuePriorities = &priority};
    const char *extension = "VK_KHR_pipeline_executable_properties";
    VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR asked = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR,
        .pipelineExecutableInfo = VK_TRUE};
    VkDeviceCreateInfo create = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, .pNext = &asked,
                                 .queueCreateInfoCount = 1, .pQueueCreateInfos = &queue,
                                 .enabledExtensionCount = 1, .ppEnabledExtensionNames = &extension};
    check(vkCreateDevice(physical, &create, NULL, &device), "vkCreateDevice");
    statistics_of = (PFN_vkGetPipelineExecutableStatisticsKHR)
        vkGetDeviceProcAddr(device, "vkGetPipelineExecutableStatisticsKHR");
    representations_of = (PFN_vkGetPipelineExecutableInternalRepresentationsKHR)
        vkGetDeviceProcAddr(device, "vkGetPipelineExecutableInternalRepresentationsKHR");
    printf("%s\t%u\t%u\t%u\t%u\n", about.properties.deviceName, about.properties.driverVersion, floats.shaderSignedZeroInfNanPreserveFloat32,
           floats.shaderRoundingModeRTEFloat32, floats.shaderDenormPreserveFloat32);
}

static VkShaderModule module_of(const char *path) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) check(VK_ERROR_UNKNOWN, path);
    fseek(file, 0, SEEK_END);
    const size_t size = (size_t)ftell(file);
    rewind(file);
    uint32_t *code = malloc(size);
    if (code == NULL || fread(code, 1, size, file) != size) check(VK_ERROR_UNKNOWN, path);
    fclose(file);
    VkShaderModuleCreateInfo create = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO, .codeSize = size, .pCode = code};
    VkShaderModule module;
    check(vkCreateShaderModule(device, &create, NULL, &module), path);
    free(code);
    return module;
}

static VkPipelineLayout layout_of(uint32_t push_bytes, uint32_t bindings) {
    VkDescriptorSetLayoutBinding each[MOST];
    for (uint32_t i = 0; i < bindings; i++)
        each[i] = (VkDescriptorSetLayoutBinding){i, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1, VK_SHADER_STAGE_COMPUTE_BIT, NULL};
    VkDescriptorSetLayoutCreateInfo sets = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO,
                                            .bindingCount = bindings, .pBindings = each};
    VkDescriptorSetLayout set;
    check(vkCreateDescriptorSetLayout(device, &sets, NULL, &set), "vkCreateDescriptorSetLayout");
    VkPushConstantRange push = {VK_SHADER_STAGE_COMPUTE_BIT, 0, push_bytes};
    VkPipelineLayoutCreateInfo create = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO, .setLayoutCount = 1,
                                         .pSetLayouts = &set, .pushConstantRangeCount = push_bytes > 0, .pPushConstantRanges = &push};
    VkPipelineLayout layout;
    check(vkCreatePipelineLayout(device, &create, NULL, &layout), "vkCreatePipelineLayout");
    return layout;
}

static void print_code(const VkPipelineExecutableInfoKHR *executable) {
    VkPipelineExecutableInternalRepresentationKHR found[MOST];
    uint32_t count = MOST;
    for (uint32_t i = 0; i < count; i++)
        found[i] = (VkPipelineExecutableInternalRepresentationKHR){
            .sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INTERNAL_REPRESENTATION_KHR};
    check(representations_of(device, executable, &count, found), "how much machine code");
    for (uint32_t i = 0; i < count; i++) {
        found[i].pData = malloc(found[i].dataSize);
        if (found[i].pData == NULL) check(VK_ERROR_OUT_OF_HOST_MEMORY, "machine code");
    }
    check(representations_of(device, executable, &count, found), "machine code");
    for (uint32_t i = 0; i < count; i++) {
        if (found[i].isText && strstr(found[i].name, "Assembly")) printf("%s\n", (const char *)found[i].pData);
        free(found[i].pData);
    }
    printf("end\n");
}

static int with_code;

static void answer(const char *path, uint32_t push_bytes, uint32_t bindings, uint32_t words, const uint32_t *word) {
    VkSpecializationMapEntry places[MOST];
    for (uint32_t i = 0; i < words; i++) places[i] = (VkSpecializationMapEntry){i, 4 * i, 4};
    VkSpecializationInfo constants = {words, places, 4 * words, word};
    VkComputePipelineCreateInfo create = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .flags = VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR |
                 (with_code ? VK_PIPELINE_CREATE_CAPTURE_INTERNAL_REPRESENTATIONS_BIT_KHR : 0),
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO, .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                  .module = module_of(path), .pName = "main", .pSpecializationInfo = &constants},
        .layout = layout_of(push_bytes, bindings)};
    VkPipeline pipeline;
    const VkResult result = vkCreateComputePipelines(device, VK_NULL_HANDLE, 1, &create, NULL, &pipeline);
    if (result == VK_SUCCESS) {
        VkPipelineExecutableInfoKHR first = {.sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR, .pipeline = pipeline};
        VkPipelineExecutableStatisticKHR found[MOST];
        uint32_t count = MOST;
        for (uint32_t i = 0; i < count; i++)
            found[i] = (VkPipelineExecutableStatisticKHR){.sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR};
        statistics_of(device, &first, &count, found);
        for (uint32_t i = 0; i < count; i++)
            if (found[i].format == VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_UINT64_KHR)
                printf("%s=%llu\t", found[i].name, (unsigned long long)found[i].value.u64);
        printf("\n");
        if (with_code) print_code(&first);
        vkDestroyPipeline(device, pipeline, NULL);
    } else {
        printf("VkResult %d\n", result);
    }
    fflush(stdout);
}

int main(int count, char **arguments) {
    with_code = count > 1 && strcmp(arguments[1], "--code") == 0;
    char path[4096];
    uint32_t push_bytes, bindings, words, word[MOST];
    open_device();
    fflush(stdout);
    while (scanf("%4095s %u %u %u", path, &push_bytes, &bindings, &words) == 4) {
        if (words > MOST || bindings > MOST) check(VK_ERROR_UNKNOWN, "too many words or bindings");
        for (uint32_t i = 0; i < words; i++)
            if (scanf("%u", &word[i]) != 1) check(VK_ERROR_UNKNOWN, "a word");
        answer(path, push_bytes, bindings, words, word);
    }
    return 0;
}
