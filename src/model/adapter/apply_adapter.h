#pragma once

#include "backend/backend.h"
#include "model/adapter/stored_adapter.h"
#include "model/checksums.h"
#include "model/parameter_store.h"

namespace kintsugi {

// Merges an adapter into weights in memory, which are those of its base model: adds the low-rank
// matrices, and replaces the parameters that were trained whole. A rank changes its shard. Sums are
// rounded once. Its files are verified first; `verify` is the share of this rank.
void apply_adapter(Backend& backend, const ParameterStore& store, const StoredAdapter& adapter,
                   VerifyShare verify = {});

}  // namespace kintsugi
