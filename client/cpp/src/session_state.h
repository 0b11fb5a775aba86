#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "connection.h"
#include "driving.h"
#include "rollserve/options.h"
#include "rpc.h"

namespace rollserve::internal {

/// The state of a session.
class SessionState {
 public:
  /// Start the call, and wait until the session has begun.
  SessionState(std::shared_ptr<Connection> connection, v1::DriveSpec spec, const DriveOptions& options);

  std::size_t num_rows() const { return num_rows_; }
  const Space& observation_space() const { return observation_space_; }
  const Space& action_space() const { return action_space_; }
  /// Return the account after the end, otherwise nothing.
  const std::optional<Account>& account() const { return final_account_; }
  /// Whether the session has ended with an error.
  bool has_failed() const { return error_ != nullptr; }

  /// Return the present step.
  const DrivenStep& observe();
  /// Send actions, and return the step that follows.
  const DrivenStep& step(const Columns& actions, const Columns& agent_infos, const std::vector<bool>& idle);
  /// Return what was recorded and not taken.
  EpisodeBatch batch();
  /// End the session.
  const Account& end();
  /// End the session without an account, from any thread.
  void cancel() noexcept { control_->cancel("the session was closed"); }

 private:
  template <class Function>
  void attempt(Function function);
  template <class Condition>
  void read_until(Condition holds);
  void send(const v1::DriveEnvironmentsRequest& request);
  void start();
  void receive();
  void read(v1::DriveEnvironmentsResponse& response);
  void begin(v1::Beginning& beginning);
  void end_round(const v1::StreamRound& round);
  bool has_all_recorded() const;

  std::shared_ptr<Connection> connection_;
  std::shared_ptr<CallControl> control_;
  TimeLimits limits_;
  Interruptions interruptions_;
  v1::DriveEnvironmentsRequest first_;
  RowForms info_forms_;
  std::unique_ptr<Rpc> rpc_;
  bool has_begun_ = false;
  std::size_t num_rows_ = 0;
  Space observation_space_;
  Space action_space_;
  RowForms action_forms_;
  std::optional<DrivenStep> step_;
  // Recorded and not taken: batches of rounds, and where each round begins among their segments; and the batches of the
  // present round.
  std::vector<EpisodeBatch> batches_;
  std::set<std::size_t> round_begins_;
  std::vector<EpisodeBatch> round_;
  std::uint64_t num_asked_steps_ = 0;     // that rows were asked to make
  std::uint64_t num_recorded_steps_ = 0;  // that rounds have brought
  std::optional<Account> account_;
  std::optional<Account> final_account_;  // once the session has ended
  std::exception_ptr error_;              // how the session has failed
};

}  // namespace rollserve::internal
