// Manager.algorithm() for Python.  kp 0.9.0 reads the push constants with the element type of the
// specialization constants, and turns an integer array given alone into floats; here each argument
// keeps its own type.  A plain list still means floats.  A shader that depends on the size of its
// subgroups says so, which kp 0.9.0 leaves to the driver.  Bound by kp's main.cpp.
#pragma once
#include "properties.hpp"
#include <kompute/Kompute.hpp>
#include <memory>
#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <vector>

namespace ag {

/// Calls f(std::vector<T>) with the constants, T being their element type.
template<typename F>
auto
withConstants(const pybind11::object& constants, F f)
{
    namespace py = pybind11;
    auto vector = [](auto array) {
        return std::vector<std::decay_t<decltype(*array.data())>>(array.data(),
                                                                  array.data() + array.size());
    };
    if (!py::isinstance<py::array>(constants))
        return f(constants.cast<std::vector<float>>());
    if (py::isinstance<py::array_t<float>>(constants))
        return f(vector(py::array_t<float, py::array::c_style>(constants)));
    if (py::isinstance<py::array_t<uint32_t>>(constants))
        return f(vector(py::array_t<uint32_t, py::array::c_style>(constants)));
    if (py::isinstance<py::array_t<int32_t>>(constants))
        return f(vector(py::array_t<int32_t, py::array::c_style>(constants)));
    if (py::isinstance<py::array_t<double>>(constants))
        return f(vector(py::array_t<double, py::array::c_style>(constants)));
    throw py::type_error("constants must be uint32, int32, float32 or float64, not " +
                         std::string(py::str(py::array(constants).dtype())));
}

/// The words of a shader for these tensors; refuses what is none.
inline std::vector<uint32_t>
spirvWords(const std::vector<std::shared_ptr<kp::Tensor>>& tensors, const std::string& code)
{
    if (tensors.empty() || code.empty() || code.size() % 4)
        throw std::runtime_error("Manager.algorithm: needs a tensor and SPIR-V of whole words, got " +
                                 std::to_string(tensors.size()) + " tensors and " +
                                 std::to_string(code.size()) + " bytes");
    std::vector<uint32_t> words(code.size() / 4);
    std::memcpy(words.data(), code.data(), code.size());
    return words;
}

/// Refuses a size of subgroups that the device does not let a pipeline require; 0 requires none.
inline void
requireSubgroups(kp::Manager& manager, uint32_t subgroupSize)
{
    if (!subgroupSize)
        return;
    const SubgroupSizes sizes = subgroupSizes(manager.physicalDevice());
    if (!sizes.has(subgroupSize))
        throw std::runtime_error("Manager.algorithm: a pipeline may require subgroups of " +
                                 std::to_string(sizes.least) + " to " + std::to_string(sizes.most) +
                                 " invocations, a power of two, not of " +
                                 std::to_string(subgroupSize));
}

inline std::shared_ptr<kp::Algorithm>
algorithm(kp::Manager& manager,
          const std::vector<std::shared_ptr<kp::Tensor>>& tensors,
          const pybind11::bytes& spirv,
          const kp::Workgroup& workgroup,
          const pybind11::object& specConstants,
          const pybind11::object& pushConstants,
          uint32_t subgroupSize)
{
    const std::vector<uint32_t> words = spirvWords(tensors, spirv);
    requireSubgroups(manager, subgroupSize);
    return withConstants(specConstants, [&](const auto& spec) {
        return withConstants(pushConstants, [&](const auto& push) {
            return manager.algorithm(tensors, words, workgroup, spec, push, subgroupSize);
        });
    });
}

} // namespace ag
