#include "evaluate.h"

#include <utility>
#include <vector>

#include "decoding.h"
#include "failures.h"
#include "joining.h"
#include "records.h"
#include "resumption.h"

namespace rollserve::internal {

namespace {

/// Make a request repeat the call that has begun.
void repeat_from(v1::EvaluationOptions& options, const v1::Beginning& beginning) {
  options.set_seed(beginning.seed());
  options.set_policy_version(beginning.policy_version());
  options.clear_expected_policy_version();  // this and the next one were checked when the call began
  options.clear_expected_environment_version();
  options.set_sampler_run(beginning.sampler_run());
  if (!options.has_environment()) options.set_environment_version(beginning.environment_version());
}

/// Make a call, and take its responses, until it ends well.
///
/// @param rpc_name the name of the RPC.
/// @param start called before each RPC, also after an interruption.
/// @param take takes a response with something else than a beginning or progress.
template <class Response, class Request, class Start, class Take>
void receive(Connection& connection, const char* rpc_name, Request& request, const TimeLimits& limits,
             const EvaluationOptions& options, const Start& start, const Take& take) {
  const auto control = connection.open_call(options.cancellation);
  Interruptions interruptions(connection.contact(), limits);
  bool has_begun = false;
  bool can_repeat = false;
  while (true) {
    start();
    auto rpc = std::make_unique<Rpc>(connection, *control, limits.until, rpc_name, request.SerializeAsString());
    auto outcome = Rpc::Outcome::Message;
    while (true) {
      Response response;
      outcome = rpc->read(response, limits.timeout);
      if (outcome != Rpc::Outcome::Message) break;
      connection.contact().was_made = true;
      if (response.has_beginning()) {
        has_begun = true;
        can_repeat = is_repeatable(response.beginning().reproducibility());
        repeat_from(*request.mutable_options(), response.beginning());
      } else if (response.has_progress()) {
        interruptions.wait_for(response.progress().waiting_for());
        if (const auto& warning = response.progress().warning(); !warning.empty()) connection.config().warn(warning);
      } else {
        take(response);
      }
    }
    if (control->is_cancelled()) control->raise_cancelled();
    if (outcome == Rpc::Outcome::Silence) interruptions.raise_silence();
    if (rpc->is_ok()) return;
    const Failure failure = rpc->failure();
    rpc.reset();
    interruptions.pause(*control, failure, has_begun, can_repeat);
  }
}

constexpr const char* without_evaluation = "the stream ended without its evaluation";

Evaluation received(Connection& connection, v1::EvaluateRequest& request, const TimeLimits& limits,
                    const EvaluationOptions& options) {
  std::optional<Evaluation> evaluation;
  std::vector<EpisodeBatch> batches;
  std::vector<MultiAgentBatch> multi_agent_batches;
  const auto start = [&] {
    batches.clear();  // a repeated call delivers all episodes again
    multi_agent_batches.clear();
  };
  receive<v1::EvaluateResponse>(connection, "Evaluate", request, limits, options, start, [&](auto& response) {
    if (response.has_batch()) batches.push_back(batch_of(*response.mutable_batch(), 0));
    if (response.has_multi_agent_batch()) {
      multi_agent_batches.push_back(batch_of(*response.mutable_multi_agent_batch()));
    }
    if (response.has_evaluation()) evaluation = evaluation_of(response.evaluation());
  });
  if (!evaluation) throw Malformed(without_evaluation);
  if (options.return_episodes && evaluation->agent_returns) {
    evaluation->multi_agent_episodes = join_batches(std::move(multi_agent_batches), evaluation->account);
  } else if (options.return_episodes) {
    evaluation->episodes = join_batches(std::move(batches), evaluation->account);
  }
  return std::move(*evaluation);
}

PopulationEvaluation received(Connection& connection, v1::EvaluatePopulationRequest& request, const TimeLimits& limits,
                              const EvaluationOptions& options) {
  std::optional<PopulationEvaluation> evaluation;
  const auto take = [&](const auto& response) {
    if (response.has_evaluation()) evaluation = evaluation_of(response.evaluation());
  };
  receive<v1::EvaluatePopulationResponse>(
      connection, "EvaluatePopulation", request, limits, options, [] {}, take);
  if (!evaluation) throw Malformed(without_evaluation);
  return std::move(*evaluation);
}

}  // namespace

Evaluation evaluate(Connection& connection, v1::EvaluateRequest& request, const TimeLimits& limits,
                    const EvaluationOptions& options) {
  try {
    return received(connection, request, limits, options);
  } catch (const Malformed& violation) {
    raise_malformed(violation.what());
  }
}

PopulationEvaluation evaluate_population(Connection& connection, v1::EvaluatePopulationRequest& request,
                                         const TimeLimits& limits, const EvaluationOptions& options) {
  try {
    return received(connection, request, limits, options);
  } catch (const Malformed& violation) {
    raise_malformed(violation.what());
  }
}

}  // namespace rollserve::internal
