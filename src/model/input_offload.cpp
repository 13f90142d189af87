#include "model/input_offload.h"

#include <utility>

namespace kintsugi {

InputOffload::InputOffload(Backend& backend, Arena& arena, DType dtype, Shape shape)
    : backend_(&backend) {
  for (Buffer& buffer : buffers_)
    buffer.tensor = arena.allocate(Region::Activations, "block input staging", dtype, shape);
}

void InputOffload::reclaim(int block) { backend_->wait(std::exchange(at(block).to_host, {})); }

void InputOffload::send(int block, Tensor host) {
  const Tensor from = at(block).tensor.rows(0, host.extent(0));
  at(block).to_host = backend_->to_host(host, from);
}

void InputOffload::fetch(int block, Tensor host) {
  reclaim(block);
  const Tensor to = at(block).tensor.rows(0, host.extent(0));
  at(block).to_device = backend_->to_device(to, host);
}

void InputOffload::receive(int block) { backend_->wait(std::exchange(at(block).to_device, {})); }

}  // namespace kintsugi
