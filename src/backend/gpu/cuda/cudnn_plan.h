#pragma once

#include <cudnn.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

// A wrapper of cuDNN's backend descriptors, as far as attention needs them: a graph of operations
// on four-dimensional tensors, compiled into one execution plan.
namespace kintsugi::cudnn {

// cuDNN rejected a plan. Contains the operation, the status and cuDNN's error message.
class Refused : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Descriptor {
 public:
  Descriptor() = default;
  Descriptor(cudnnBackendDescriptorType_t type, std::string name);
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;

  cudnnBackendDescriptor_t get() const { return descriptor_; }
  void set(cudnnBackendAttributeName_t attribute, cudnnBackendAttributeType_t type,
           std::int64_t count, const void* values);
  void set(cudnnBackendAttributeName_t attribute, const Descriptor& value);
  void set(cudnnBackendAttributeName_t attribute, std::int64_t value);
  void set(cudnnBackendAttributeName_t attribute, bool value);
  void set(cudnnBackendAttributeName_t attribute, cudnnDataType_t value);
  void finalize();

 private:
  cudnnBackendDescriptor_t descriptor_ = nullptr;
  std::string name_;
};

// The device of a plan: a handle, or, to check what another GPU supports, the properties of a
// device.
struct Target {
  cudnnHandle_t handle = nullptr;
  cudnnBackendDescriptor_t device_properties = nullptr;
};

using Extents = std::array<std::int64_t, 4>;
Extents row_major(const Extents& extents);

// The address of a tensor for one execution.
struct Binding {
  std::int64_t id;
  void* address;
};

class Plan {
 public:
  std::size_t workspace_bytes() const { return static_cast<std::size_t>(workspace_bytes_); }
  const std::string& engine() const { return engine_; }  // "engine 5, nondeterministic"
  void execute(cudnnHandle_t handle, std::span<const Binding> bindings, void* workspace) const;

 private:
  friend class Graph;
  std::vector<Descriptor> descriptors_;  // of tensors and operations, which the plan refers to
  Descriptor graph_, config_, plan_;
  std::vector<std::int64_t> constant_ids_;
  std::vector<float> constants_;
  std::int64_t workspace_bytes_ = 0;
  std::string engine_;
};

// Builds a graph. Operations are added in order; each returns the tensor it writes. Names appear in
// error messages.
class Graph {
 public:
  using Value = int;
  static constexpr Value kNone = -1;

  // A tensor in memory, which the caller binds to `id` (1 to 999) when the plan runs.
  Value memory(std::string name, std::int64_t id, cudnnDataType_t dtype, const Extents& extents,
               const Extents& strides);
  // An intermediate tensor between two operations, which has no memory.
  Value virtual_tensor(cudnnDataType_t dtype, const Extents& extents, const Extents& strides);
  Value virtual_tensor(cudnnDataType_t dtype, const Extents& extents) {
    return virtual_tensor(dtype, extents, row_major(extents));
  }
  Value constant(float value);
  // A number in host memory, which the caller binds to `id` when the plan runs.
  Value number(std::string name, std::int64_t id);

  // The valid sizes of m, n and k in each sequence, as (batch, 1, 1, 1) int32 tensors; kNone: all.
  struct Lengths {
    Value m = kNone;
    Value n = kNone;
    Value k = kNone;
  };
  Value matmul(const char* name, Value a, Value b, Value out, const Lengths& lengths);
  Value pointwise(const char* name, cudnnPointwiseMode_t mode, Value out, Value x, Value b = kNone,
                  Value t = kNone, cudnnDataType_t arithmetic = CUDNN_DATA_FLOAT);
  Value index(const char* name, Value like, Value out, std::int64_t axis);
  Value reduce(const char* name, cudnnReduceTensorOp_t operation, Value x, Value out);
  Value reshape(const char* name, Value x, Value out);

  // The first plan of cuDNN's heuristics that can be finalized; Refused if there is none.
  Plan build(const Target& target, bool deterministic) &&;

 private:
  Value add_tensor(std::string name, std::int64_t id, cudnnDataType_t dtype, const Extents& extents,
                   const Extents& strides, bool is_virtual, bool by_value);
  Value finish(Descriptor operation, Value out);

  std::vector<Descriptor> tensors_;
  std::vector<Descriptor> helpers_;  // the matmul, pointwise and reduction descriptors
  std::vector<Descriptor> operations_;
  std::vector<std::int64_t> constant_ids_;
  std::vector<float> constants_;
  std::int64_t next_id_ = 1000;
};

}  // namespace kintsugi::cudnn
