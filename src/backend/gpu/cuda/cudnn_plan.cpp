#include "backend/gpu/cuda/cudnn_plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace kintsugi::cudnn {
namespace {

std::string last_message() {
  std::array<char, 2048> text{};
  cudnnGetLastErrorString(text.data(), text.size());
  return text.data();
}

void check(cudnnStatus_t status, const std::string& what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  throw Refused(fmt::format("cuDNN {}: {}: {}", what, cudnnGetErrorString(status), last_message()));
}

bool is_nondeterministic(const Descriptor& engine) {
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes{};
  std::int64_t count = 0;
  check(cudnnBackendGetAttribute(engine.get(), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                 CUDNN_TYPE_NUMERICAL_NOTE, static_cast<std::int64_t>(notes.size()),
                                 &count, notes.data()),
        "engine notes");
  return std::find(notes.begin(), notes.begin() + count, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) !=
         notes.begin() + count;
}

std::vector<Descriptor> heuristic_configs(const Descriptor& graph, const Target& target) {
  Descriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, "heuristics");
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
  if (target.device_properties) {
    heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                   &target.device_properties);
  }
  heuristics.finalize();

  std::int64_t count = 0;
  check(cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr),
        "number of engine configurations");
  std::vector<Descriptor> configs;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (std::int64_t i = 0; i < count; ++i) {
    configs.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "engine configuration");
    raw.push_back(configs.back().get());
  }
  check(cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &count, raw.data()),
        "engine configurations");
  configs.resize(static_cast<std::size_t>(count));
  return configs;
}

}  // namespace

Descriptor::Descriptor(cudnnBackendDescriptorType_t type, std::string name)
    : name_(std::move(name)) {
  check(cudnnBackendCreateDescriptor(type, &descriptor_), name_);
}

Descriptor::~Descriptor() {
  if (descriptor_) cudnnBackendDestroyDescriptor(descriptor_);
}

Descriptor::Descriptor(Descriptor&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, nullptr)), name_(std::move(other.name_)) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(name_, other.name_);
  return *this;
}

void Descriptor::set(cudnnBackendAttributeName_t attribute, cudnnBackendAttributeType_t type,
                     std::int64_t count, const void* values) {
  check(cudnnBackendSetAttribute(descriptor_, attribute, type, count, values),
        fmt::format("{} (attribute {})", name_, static_cast<int>(attribute)));
}

void Descriptor::set(cudnnBackendAttributeName_t attribute, const Descriptor& value) {
  const cudnnBackendDescriptor_t raw = value.get();
  set(attribute, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &raw);
}

void Descriptor::set(cudnnBackendAttributeName_t attribute, std::int64_t value) {
  set(attribute, CUDNN_TYPE_INT64, 1, &value);
}

void Descriptor::set(cudnnBackendAttributeName_t attribute, bool value) {
  set(attribute, CUDNN_TYPE_BOOLEAN, 1, &value);
}

void Descriptor::set(cudnnBackendAttributeName_t attribute, cudnnDataType_t value) {
  set(attribute, CUDNN_TYPE_DATA_TYPE, 1, &value);
}

void Descriptor::finalize() { check(cudnnBackendFinalize(descriptor_), name_); }

Extents row_major(const Extents& extents) {
  return {extents[1] * extents[2] * extents[3], extents[2] * extents[3], extents[3], 1};
}

// ---- tensors

Graph::Value Graph::add_tensor(std::string name, std::int64_t id, cudnnDataType_t dtype,
                               const Extents& extents, const Extents& strides, bool is_virtual,
                               bool by_value) {
  Descriptor tensor(CUDNN_BACKEND_TENSOR_DESCRIPTOR, std::move(name));
  tensor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, id);
  tensor.set(CUDNN_ATTR_TENSOR_DATA_TYPE, dtype);
  tensor.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, extents.data());
  tensor.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides.data());
  tensor.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, std::int64_t{16});
  tensor.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, is_virtual);
  tensor.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, by_value);
  tensor.finalize();
  tensors_.push_back(std::move(tensor));
  return static_cast<Value>(tensors_.size()) - 1;
}

Graph::Value Graph::memory(std::string name, std::int64_t id, cudnnDataType_t dtype,
                           const Extents& extents, const Extents& strides) {
  return add_tensor("tensor " + name, id, dtype, extents, strides, false, false);
}

Graph::Value Graph::virtual_tensor(cudnnDataType_t dtype, const Extents& extents,
                                   const Extents& strides) {
  return add_tensor("intermediate tensor", next_id_++, dtype, extents, strides, true, false);
}

Graph::Value Graph::constant(float value) {
  constant_ids_.push_back(next_id_);
  constants_.push_back(value);
  return add_tensor("constant", next_id_++, CUDNN_DATA_FLOAT, {1, 1, 1, 1}, {1, 1, 1, 1}, false,
                    true);
}

Graph::Value Graph::number(std::string name, std::int64_t id) {
  return add_tensor("number " + name, id, CUDNN_DATA_FLOAT, {1, 1, 1, 1}, {1, 1, 1, 1}, false,
                    true);
}

// ---- operations

Graph::Value Graph::finish(Descriptor operation, Value out) {
  operation.finalize();
  operations_.push_back(std::move(operation));
  return out;
}

Graph::Value Graph::matmul(const char* name, Value a, Value b, Value out, const Lengths& lengths) {
  Descriptor& kind =
      helpers_.emplace_back(CUDNN_BACKEND_MATMUL_DESCRIPTOR, fmt::format("matmul '{}'", name));
  kind.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
  kind.finalize();
  Descriptor operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR,
                       fmt::format("operation matmul '{}'", name));
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, tensors_[a]);
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, tensors_[b]);
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, tensors_[out]);
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, kind);
  if (lengths.m != kNone)
    operation.set(CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, tensors_[lengths.m]);
  if (lengths.n != kNone)
    operation.set(CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, tensors_[lengths.n]);
  if (lengths.k != kNone)
    operation.set(CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, tensors_[lengths.k]);
  return finish(std::move(operation), out);
}

Graph::Value Graph::pointwise(const char* name, cudnnPointwiseMode_t mode, Value out, Value x,
                              Value b, Value t, cudnnDataType_t arithmetic) {
  Descriptor& kind = helpers_.emplace_back(CUDNN_BACKEND_POINTWISE_DESCRIPTOR,
                                           fmt::format("pointwise '{}'", name));
  kind.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
  kind.set(CUDNN_ATTR_POINTWISE_MATH_PREC, arithmetic);
  kind.finalize();
  Descriptor operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
                       fmt::format("operation pointwise '{}'", name));
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kind);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, tensors_[x]);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, tensors_[out]);
  if (b != kNone) operation.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, tensors_[b]);
  if (t != kNone) operation.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, tensors_[t]);
  return finish(std::move(operation), out);
}

Graph::Value Graph::index(const char* name, Value like, Value out, std::int64_t axis) {
  Descriptor& kind =
      helpers_.emplace_back(CUDNN_BACKEND_POINTWISE_DESCRIPTOR, fmt::format("index '{}'", name));
  const cudnnPointwiseMode_t mode = CUDNN_POINTWISE_GEN_INDEX;
  kind.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
  kind.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_DATA_INT32);
  kind.set(CUDNN_ATTR_POINTWISE_AXIS, axis);
  kind.finalize();
  Descriptor operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
                       fmt::format("operation index '{}'", name));
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kind);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, tensors_[like]);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, tensors_[out]);
  return finish(std::move(operation), out);
}

Graph::Value Graph::reduce(const char* name, cudnnReduceTensorOp_t operation_kind, Value x,
                           Value out) {
  Descriptor& kind = helpers_.emplace_back(CUDNN_BACKEND_REDUCTION_DESCRIPTOR,
                                           fmt::format("reduction '{}'", name));
  kind.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
  kind.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &operation_kind);
  kind.finalize();
  Descriptor operation(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
                       fmt::format("operation reduction '{}'", name));
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, kind);
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, tensors_[x]);
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, tensors_[out]);
  return finish(std::move(operation), out);
}

Graph::Value Graph::reshape(const char* name, Value x, Value out) {
  Descriptor operation(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR,
                       fmt::format("operation reshape '{}'", name));
  operation.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, tensors_[x]);
  operation.set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, tensors_[out]);
  return finish(std::move(operation), out);
}

// ---- the plan

Plan Graph::build(const Target& target, bool deterministic) && {
  Plan result;
  result.graph_ = Descriptor(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
                             fmt::format("graph of {} operations", operations_.size()));
  std::vector<cudnnBackendDescriptor_t> raw;
  for (const Descriptor& operation : operations_) raw.push_back(operation.get());
  result.graph_.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                    static_cast<std::int64_t>(raw.size()), raw.data());
  if (target.handle) {
    result.graph_.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &target.handle);
  }
  result.graph_.finalize();

  std::string tried = "the heuristics propose no engine";
  for (Descriptor& config : heuristic_configs(result.graph_, target)) {
    try {
      Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR, "engine");
      cudnnBackendDescriptor_t raw_engine = engine.get();
      std::int64_t count = 0;
      check(cudnnBackendGetAttribute(config.get(), CUDNN_ATTR_ENGINECFG_ENGINE,
                                     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &raw_engine),
            "engine of a configuration");
      std::int64_t number = -1;
      check(cudnnBackendGetAttribute(engine.get(), CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64,
                                     1, &count, &number),
            "engine number");
      const bool nondeterministic = is_nondeterministic(engine);
      result.engine_ =
          fmt::format("engine {}{}", number, nondeterministic ? ", nondeterministic" : "");
      if (deterministic && nondeterministic) {
        tried = "all engines are nondeterministic";
        continue;
      }
      Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "plan of " + result.engine_);
      plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
      if (target.handle) {
        plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &target.handle);
      }
      plan.finalize();
      check(cudnnBackendGetAttribute(plan.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                     CUDNN_TYPE_INT64, 1, &count, &result.workspace_bytes_),
            "workspace of the plan");
      result.config_ = std::move(config);
      result.plan_ = std::move(plan);
      break;
    } catch (const Refused& refused) {
      tried = refused.what();
    }
  }
  if (!result.plan_.get()) {
    throw Refused(fmt::format("cuDNN has no plan for a graph of {} operations: {}",
                              operations_.size(), tried));
  }
  for (auto* group : {&tensors_, &helpers_, &operations_}) {
    for (Descriptor& descriptor : *group) result.descriptors_.push_back(std::move(descriptor));
  }
  result.constant_ids_ = std::move(constant_ids_);
  result.constants_ = std::move(constants_);
  return result;
}

void Plan::execute(cudnnHandle_t handle, std::span<const Binding> bindings, void* workspace) const {
  std::vector<std::int64_t> ids;
  std::vector<void*> addresses;
  for (const Binding& binding : bindings) {
    ids.push_back(binding.id);
    addresses.push_back(binding.address);
  }
  for (std::size_t i = 0; i < constants_.size(); ++i) {
    ids.push_back(constant_ids_[i]);
    addresses.push_back(const_cast<float*>(&constants_[i]));  // read only, on the host
  }
  try {
    Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, "variant pack");
    const auto count = static_cast<std::int64_t>(ids.size());
    pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids.data());
    pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, addresses.data());
    pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    pack.finalize();
    check(cudnnBackendExecute(handle, plan_.get(), pack.get()), "execution of " + engine_);
  } catch (const Refused& refused) {
    failure("{}", refused.what());  // the plan was accepted before, so there is no fallback
  }
}

}  // namespace kintsugi::cudnn
