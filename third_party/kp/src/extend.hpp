// Binds what this project adds to kp: exceptions, operations, Sequence.dispatch, .copy and .wait, and the
// Manager's queries.  Called once from kp's main.cpp, when its own classes are bound.
#pragma once
#include "memory.hpp"
#include "ops.hpp"
#include "properties.hpp"
#include "together.hpp"
#include <kompute/Kompute.hpp>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

namespace ag {

namespace py = pybind11;

template<typename T>
using Class = py::class_<T, std::shared_ptr<T>>;

/// A class of exceptions, which is never released: the translator outlives the interpreter's own objects.
inline PyObject*
errorClass(py::module_& m, const char* name, PyObject* base)
{
    return py::exception<std::exception>(m, name, base).release().ptr();
}

inline void
bindErrors(py::module_& m)
{
    // Classes of their own: whatever else comes out of a call, such as from a signal's handler, is somebody else's.
    static PyObject* const memory = errorClass(m, "OutOfMemoryError", PyExc_MemoryError);
    static PyObject* const other = errorClass(m, "Error", PyExc_RuntimeError);
    static PyObject* const lost = errorClass(m, "DeviceLostError", other);
    py::register_exception_translator([](std::exception_ptr error) {
        try {
            if (error)
                std::rethrow_exception(error);
        } catch (const vk::OutOfDeviceMemoryError& e) {
            PyErr_SetString(memory, e.what());
        } catch (const vk::OutOfHostMemoryError& e) {
            PyErr_SetString(memory, e.what());
        } catch (const vk::TooManyObjectsError& e) { // of allocations: some drivers allow 4096
            PyErr_SetString(memory, e.what());
        } catch (const std::bad_alloc& e) {
            PyErr_SetString(memory, e.what());
        } catch (const vk::DeviceLostError& e) {
            PyErr_SetString(lost, e.what());
        } catch (const py::builtin_exception&) { // a TypeError and the like
            throw;
        } catch (const std::runtime_error& e) {
            PyErr_SetString(other, e.what());
        }
    });
}

inline void
bindOps(py::module_& m)
{
    py::class_<OpBarrier, kp::OpBase, std::shared_ptr<OpBarrier>>(
      m,
      "OpBarrier",
      "Make all writes so far visible to what follows; to the host as well if host is true.")
      .def(py::init<bool>(), py::arg("host") = false);

    py::class_<OpDispatch, kp::OpBase, std::shared_ptr<OpDispatch>>(
      m, "OpDispatch", "One launch of an Algorithm, with its own push constants and workgroup.")
      .def(py::init([](std::shared_ptr<kp::Algorithm> algorithm,
                       const py::bytes& push,
                       std::optional<kp::Workgroup> workgroup,
                       bool barrier) {
               return std::make_shared<OpDispatch>(
                 std::move(algorithm), std::string(push), workgroup, barrier);
           }),
           py::arg("algorithm").none(false),
           py::arg("push_consts") = py::bytes(),
           py::arg("workgroup") = py::none(),
           py::arg("barrier") = true);

    py::class_<OpCopy, kp::OpBase, std::shared_ptr<OpCopy>>(
      m, "OpCopy", "Copy regions (source offset, destination offset, size), all in bytes.")
      .def(py::init<std::shared_ptr<kp::Tensor>,
                    std::shared_ptr<kp::Tensor>,
                    const std::vector<OpCopy::Region>&,
                    bool>(),
           py::arg("src").none(false),
           py::arg("dst").none(false),
           py::arg("regions"),
           py::arg("barrier") = true);
}

inline void
bindSequence(Class<kp::Sequence>& sequence)
{
    // The engine's hot path: one call per launch, no Python object for the operation.
    sequence.def(
      "dispatch",
      [](kp::Sequence& self,
         std::shared_ptr<kp::Algorithm> algorithm,
         const py::bytes& push,
         uint32_t x,
         uint32_t y,
         uint32_t z,
         bool barrier,
         uint32_t firstX,
         uint32_t firstY,
         bool copies) {
          self.record(std::make_shared<OpDispatch>(std::move(algorithm),
                                                   std::string(push),
                                                   kp::Workgroup{ x, y, z },
                                                   barrier,
                                                   kp::Workgroup{ firstX, firstY, 0 },
                                                   copies));
      },
      "Record one launch of x*y*z workgroups, after a barrier unless told otherwise; or a part of one,\n"
      "whose workgroups count from first_x and first_y.  The barrier is between launches only without copies.",
      py::arg("algorithm").none(false),
      py::arg("push_consts"),
      py::arg("x"),
      py::arg("y") = 1,
      py::arg("z") = 1,
      py::arg("barrier") = true,
      py::arg("first_x") = 0,
      py::arg("first_y") = 0,
      py::arg("copies") = true);
    sequence.def(
      "copy",
      [](kp::Sequence& self,
         std::shared_ptr<kp::Tensor> source,
         std::shared_ptr<kp::Tensor> destination,
         uint64_t from,
         uint64_t to,
         uint64_t size,
         bool barrier,
         bool host) {
          self.record(std::make_shared<OpCopy>(std::move(source),
                                               std::move(destination),
                                               std::vector<OpCopy::Region>{ { from, to, size } },
                                               barrier));
          if (host)
              self.record(std::make_shared<OpBarrier>(true));
      },
      "Record a copy of one region, in bytes, after a barrier unless told otherwise; if host, another makes\n"
      "it visible to the host.",
      py::arg("src").none(false),
      py::arg("dst").none(false),
      py::arg("src_offset"),
      py::arg("dst_offset"),
      py::arg("nbytes"),
      py::arg("barrier") = true,
      py::arg("host") = false);
    sequence.def(
      "to_host",
      [](kp::Sequence& self) { self.record(std::make_shared<OpBarrier>(true)); },
      "Record a barrier that makes all writes so far visible to the host, and to what follows.");
    sequence.def("eval_async_after",
                 &kp::Sequence::evalAsyncAfter,
                 "Submit other sequences and then this one, all at once; whoever waits for one waits for all.",
                 py::arg("before"));
    sequence.def("end",
                 &kp::Sequence::end,
                 "No more is recorded.  Submitting does this, too; here, who records hears what the driver refuses.");
    sequence.def("wait",
                 &kp::Sequence::wait,
                 "Wait for the submitted work: True when it is done, False after timeout_ns.",
                 py::arg("timeout_ns") = UINT64_MAX);
}

inline void
bindManager(Class<kp::Manager>& manager)
{
    manager
      .def("list_devices",
           [](const kp::Manager& self) {
               py::list devices;
               for (const vk::PhysicalDevice& device : self.listDevices())
                   devices.append(deviceProperties(device));
               return devices;
           },
           "The properties of every Vulkan device, in the order of Manager's device index.")
      .def("get_device_properties",
           [](const kp::Manager& self) { return deviceProperties(self.physicalDevice()); },
           "The properties of this device: identity, limits, timestamp period and bits.")
      .def("memory_heaps",
           [](const kp::Manager& self) { return memoryHeaps(self.physicalDevice()); },
           "[(bytes, is device-local)] for each memory heap.")
      .def("arena_heaps",
           [](const kp::Manager& self) { return kp::storageHeaps(self.physicalDevice()); },
           "The numbers of the memory heaps that arenas may lie in.")
      .def("memory_budget",
           [](const kp::Manager& self) { return memoryBudget(self.physicalDevice()); },
           "[(budget, usage)] of this process for each memory heap, in bytes; empty if the driver does not tell.")
      .def("features",
           &kp::Manager::features,
           "Optional features by name: True if supported.")
      .def("enabled",
           [](const kp::Manager& self) { return self.enabled(); },
           "The names of those that are enabled: all that a kernel of ag, or kp itself, uses.")
      .def("cooperative_matrices",
           [](const kp::Manager& self) {
               return cooperativeMatrices(
                 self.instance(), self.physicalDevice(), self.features().at("cooperative_matrix"));
           },
           "[(m, n, k, types of A, B, C and the result, scope)], by Vulkan's numbers.")
      .def("arena",
           [](kp::Manager& self, uint32_t words, bool addressed) {
               if (addressed && !self.features().at("buffer_device_address"))
                   throw std::runtime_error("Manager.arena: the device has no addresses of buffers");
               return self.tensor(nullptr,
                                  words,
                                  sizeof(uint32_t),
                                  kp::Tensor::TensorDataTypes::eUnsignedInt,
                                  addressed ? kp::Tensor::TensorTypes::eAddressed
                                            : kp::Tensor::TensorTypes::eStorage);
           },
           "A storage tensor of 4-byte words: one allocation, no staging twin, not initialised; if addressed,\n"
           "shaders may be given its address.",
           py::arg("words"),
           py::arg("addressed") = false)
      .def("address",
           [](kp::Manager&, kp::Tensor& tensor) { return tensor.address(); },
           "Where shaders find the memory of an addressed tensor.",
           py::arg("tensor"))
      .def("host_sees",
           [](const kp::Manager& self) { return kp::storageSeen(self.physicalDevice()); },
           "Whether the host may see the memory of arenas, or of some of them.")
      .def("host_access",
           [](const kp::Manager&, const kp::Tensor& arena) { return py::make_tuple(arena.mapped(), arena.cached()); },
           "Whether the host sees the memory of this arena, and whether it reads that at full speed.",
           py::arg("arena"))
      .def("transfers_apart",
           &kp::Manager::transfersApart,
           "Whether queue 1 is for transfers, which run beside what queue 0 was given before, and before all that\n"
           "it is given after them.")
      .def("bound",
           &kp::Manager::bound,
           "The pipeline of an Algorithm, bound to other tensors, as many as it has.",
           py::arg("algorithm").none(false),
           py::arg("tensors"))
      .def("algorithms",
           &algorithms,
           "Algorithms, each from (tensors, SPIR-V, workgroup, specialization and push constants of uint32), made by so\n"
           "many threads; None for one that cannot be made.",
           py::arg("wanted"),
           py::arg("threads"))
      .def("pipelines", &kp::Manager::pipelines, "How many pipelines were made.")
      .def("pipeline_cache",
           [](const kp::Manager& self) {
               const std::vector<uint8_t> data = self.pipelineCache();
               return py::bytes(reinterpret_cast<const char*>(data.data()), data.size());
           },
           "What the driver keeps of the pipelines that it compiled, for another process.")
      .def("add_pipeline_cache",
           [](kp::Manager& self, const py::bytes& data) { self.addPipelineCache(data); },
           "Have the driver use what another process got from pipeline_cache().",
           py::arg("data"))
      .def("clear",
           &kp::Manager::clear,
           "Forget the tensors, algorithms and sequences that are gone already.");
}

inline void
extend(py::module_& m, Class<kp::Sequence>& sequence, Class<kp::Manager>& manager)
{
    bindErrors(m);
    bindOps(m);
    bindSequence(sequence);
    bindManager(manager);
    m.def("list_devices",
          [] {
              const kp::Manager instance{ kp::Manager::InstanceOnly{} };
              py::list devices;
              for (const vk::PhysicalDevice& device : instance.listDevices()) {
                  py::dict d = deviceProperties(device);
                  kp::Features features;
                  features.query(device, extensionsOf(device));
                  d["features"] = features.there;
                  d["memory_heaps"] = memoryHeaps(device);
                  d["arena_heaps"] = kp::storageHeaps(device);
                  devices.append(d);
              }
              return devices;
          },
          "The properties, features and memory heaps of every Vulkan device; opens none of them.");
}

} // namespace ag
