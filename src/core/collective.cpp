#include "core/collective.h"

namespace kintsugi {

const char* to_string(Collective kind) {
  switch (kind) {
    case Collective::AllReduce:
      return "all_reduce";
    case Collective::ReduceScatter:
      return "reduce_scatter";
    case Collective::AllGather:
      return "all_gather";
    case Collective::Broadcast:
      return "broadcast";
    case Collective::AllToAll:
      return "all_to_all";
    case Collective::Send:
      return "send";
    case Collective::Receive:
      return "receive";
    case Collective::Barrier:
      return "barrier";
  }
  return "?";
}

double ring_bytes(Collective kind, double bytes, int size) {
  if (size == 1) return 0;
  const double others = size - 1;
  switch (kind) {
    case Collective::AllReduce:
      return 2 * bytes * others / size;
    case Collective::ReduceScatter:
    case Collective::AllGather:
      return bytes * others / size;
    case Collective::Broadcast:
    case Collective::AllToAll:
    case Collective::Send:
      return bytes;
    case Collective::Receive:
    case Collective::Barrier:
      return 0;
  }
  return 0;
}

}  // namespace kintsugi
