#include "model/input_offload.h"

#include <utility>

namespace kintsugi {

InputOffload::InputOffload(Backend& backend, Arena& arena, DType dtype, Shape shape)
    : backend_(&backend) {
  for (Buffer& buffer : buffers_)
    buffer.here = arena.allocate(Region::Activations, "block inputs on their way", dtype, shape);
}

void InputOffload::reclaim(int block) { backend_->wait(std::exchange(at(block).going, {})); }

void InputOffload::send(int block, Tensor host) {
  const Tensor from = at(block).here.rows(0, host.extent(0));
  at(block).going = backend_->to_host(host, from);
}

void InputOffload::fetch(int block, Tensor host) {
  reclaim(block);
  const Tensor to = at(block).here.rows(0, host.extent(0));
  at(block).coming = backend_->to_device(to, host);
}

void InputOffload::receive(int block) { backend_->wait(std::exchange(at(block).coming, {})); }

}  // namespace kintsugi
