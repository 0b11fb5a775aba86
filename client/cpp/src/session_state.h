#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "connection.h"
#include "driving.h"
#include "rollserve/options.h"
#include "rpc.h"
#include "session_position.h"

namespace rollserve::internal {

/// The state of a session.
class SessionState {
 public:
  /// Start the call by a message that says what is driven, or which session goes on, and wait until it has begun.
  SessionState(std::shared_ptr<Connection> connection, v1::DriveEnvironmentsRequest first, const DriveOptions& options);

  const std::string& token() const { return token_; }
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
  /// Send actions of rows that do not wait for others; without rows, of those of the last step.
  void send(const Columns& actions, std::vector<std::size_t> rows, const Columns& agent_infos);
  /// Return the next step of a session whose rows do not wait for each other.
  const DrivenStep& recv();
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
  void check_ready(const char* method) const;
  void act(v1::DriveEnvironmentsRequest request, std::uint64_t num_steps);
  void send(const v1::DriveEnvironmentsRequest& request);
  void send_in_attempt(const v1::DriveEnvironmentsRequest& request);
  void start();
  void send_again();
  void receive();
  void read(v1::DriveEnvironmentsResponse& response);
  void begin(v1::Beginning& beginning);
  void show(v1::DrivenStep& step);
  void end_round(const v1::StreamRound& round);
  bool has_all_recorded() const;

  std::shared_ptr<Connection> connection_;
  std::shared_ptr<CallControl> control_;
  TimeLimits limits_;
  Interruptions interruptions_;
  v1::DriveEnvironmentsRequest first_;  // what is driven, or which session goes on
  RowForms info_forms_;
  std::unique_ptr<Rpc> rpc_;
  bool has_begun_ = false;
  bool lasts_;     // whether it has a lease
  bool is_ready_;  // whether rows do not wait for each other
  bool records_;
  std::string token_;
  SessionPosition position_;
  std::size_t num_rows_ = 0;
  Space observation_space_;
  Space action_space_;
  RowForms action_forms_;
  std::optional<DrivenStep> step_;  // the last one that was returned
  std::deque<DrivenStep> unread_;   // those that were received since
  // Of a session with a lease, what a lost stream may have lost: actions that no step has followed, and ends.
  std::vector<v1::DriveEnvironmentsRequest> outstanding_;
  bool wants_fragment_end_ = false;
  bool wants_end_ = false;
  // Recorded and not taken: batches of rounds, and where each round begins among their segments; and the batches of the
  // present round.
  std::vector<EpisodeBatch> batches_;
  std::set<std::size_t> round_begins_;
  std::vector<EpisodeBatch> round_;
  std::uint64_t num_rounds_ = 0;      // of the session, up to the last one that is complete
  std::uint64_t num_unrecorded_ = 0;  // steps that rows were asked to make, and that no round has brought
  std::optional<Account> account_;
  std::optional<Account> final_account_;  // once the session has ended
  std::exception_ptr error_;              // how the session has failed
};

}  // namespace rollserve::internal
