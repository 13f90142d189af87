#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/sampling/sample_order.h"
#include "data/sampling/sample_reader.h"
#include "data/sampling/validation_set.h"
#include "data/tokenizers/tokenizer.h"
#include "train/config/config.h"

namespace kintsugi {

// What a run reads: its sources, opened and checked against the tokenizer and the model, the order
// of their samples, and what is held out.
class RunData {
 public:
  // Everything wrong with the data is a UserError here, except ids that only reading can find.
  // Resolves the tokenizer of a configuration that was parsed only.
  explicit RunData(RunConfig& config);

  struct Source {
    std::string name;
    std::vector<TokenShard> shards;
    TokenStream train;
    double share = 0;   // of the run's samples
    double epochs = 0;  // of this source in the run
  };
  const std::vector<Source>& sources() const { return sources_; }
  const SampleOrder& order() const { return *order_; }
  const std::vector<ValidationSet>& validation() const { return validation_; }
  const SampleOptions& sample_options() const { return options_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  // Of what the order of the samples depends on, and of the sizes and ends of the files: cheap
  // enough for every rank.
  std::string fingerprint() const;
  std::string held_out_fingerprint() const;
  // Reads what the fingerprint leaves out (content_record.h), on one rank. `record` is written, and
  // in a run that continues compared first: a file that has changed is a UserError.
  void check_content(const std::filesystem::path& record, bool continues) const;
  // The bytes of text that these targets stand for, those without a loss left out.
  std::int64_t bytes_of(std::span<const std::int32_t> targets) const;

 private:
  void open_source(const DataSource& source, const RunConfig& config);
  // Of each source; none where the configuration gives none.
  std::vector<std::optional<double>> weights_of(const DataConfig& data) const;
  void put_in_order(const RunConfig& config);
  // The shares of the sources.
  std::vector<double> put_in_megatron_order(const RunConfig& config,
                                            const std::vector<std::optional<double>>& weights);
  void open_validation(const RunConfig& config);
  std::vector<TokenShard> open_checked(const std::string& path, const RunConfig& config) const;

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<std::int32_t> bytes_;  // of each token
  SampleOptions options_;
  std::vector<Source> sources_;
  // Of each validation set.
  struct HeldOutPart {
    std::string name;
    std::vector<TokenShard> shards;  // empty: those of a source
    TokenStream stream;
  };
  std::vector<HeldOutPart> held_out_;
  std::unique_ptr<SampleOrder> order_;
  std::vector<ValidationSet> validation_;
};

}  // namespace kintsugi
