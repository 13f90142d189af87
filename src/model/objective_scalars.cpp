#include "model/objective_scalars.h"

namespace kintsugi {

StepScalars objective_scalars(double z_loss, bool preference) {
  StepScalars scalars;
  if (z_loss > 0)
    scalars.add({.names = {.json = "z_loss",
                           .tag = "train/z_loss",
                           .prometheus = {.name = "kintsugi_z_loss"},
                           .help = "What train.z_loss adds to the loss of the last step."},
                 .factor = z_loss});
  if (!preference) return scalars;
  const auto reward = [&](const std::string& answer) {
    return scalars.add(
        {.names = {.json = "reward_" + answer,
                   .tag = "train/reward_" + answer,
                   .prometheus = {.name = "kintsugi_reward", .label = "answer", .value = answer},
                   .help = "Mean reward of the answers in the last step (objective dpo)."}});
  };
  const std::size_t chosen = reward("chosen"), rejected = reward("rejected");
  scalars.add_difference({.names = {.json = "reward_margin",
                                    .tag = "train/reward_margin",
                                    .prometheus = {.name = "kintsugi_reward_margin"},
                                    .help = "Mean margin between the rewards of chosen and "
                                            "rejected answers in the last step."},
                          .label = "margin"},
                         chosen, rejected);
  scalars.add(
      {.names = {.json = "reward_accuracy",
                 .tag = "train/reward_accuracy",
                 .prometheus = {.name = "kintsugi_reward_accuracy"},
                 .help = "Fraction of the pairs of the last step whose chosen answer has the "
                         "larger reward."},
       .valid = {.json = "valid_reward_accuracy",
                 .tag = "valid/reward_accuracy",
                 .prometheus = {.name = "kintsugi_valid_reward_accuracy"},
                 .help = "Fraction of the held-out pairs whose chosen answer has the larger "
                         "reward."},
       .label = "accuracy",
       .digits = 3});
  return scalars;
}

}  // namespace kintsugi
