package rollserve

import (
	"time"

	pb "github.com/rollserve/rollserve/client/go/rollservev1"
)

// Account says what was simulated for a call, and what became of it. Carried and simulated steps together are the
// delivered, kept, superseded, cancelled, lost, idle and discarded steps.
//
// After an interruption of the stream, steps and episodes are those that all calls of the stream delivered; other
// numbers are those of the last call.
type Account struct {
	// NumSteps is the number of steps delivered.
	NumSteps int64
	// NumEpisodes is the number of episodes delivered; of those delivered in fragments, the ones that ended in this call.
	NumEpisodes int64
	// NumSimulatedSteps is the number of steps simulated while the call ran, for it and beyond its end.
	NumSimulatedSteps int64
	// NumCarriedSteps is the number of steps simulated earlier that are settled in this account, or delivered before an
	// interruption.
	NumCarriedSteps int64
	// NumPrefetchedSteps is the number of carried steps that were simulated between calls, because of Prefetch.
	NumPrefetchedSteps int64
	// NumKeptSteps is the number of steps of episodes beyond the last delivered one, kept for the next call.
	NumKeptSteps int64
	// NumSupersededSteps is the number of steps discarded that earlier calls had kept, and that no call can use any more.
	NumSupersededSteps int64
	// NumCancelledSteps is the number of steps discarded of calls that were cancelled or failed.
	NumCancelledSteps int64
	// NumLostSteps is the number of steps discarded whose worker is gone, whose environment failed, or which another
	// worker finished first.
	NumLostSteps int64
	// NumIdleSteps is the number of steps discarded of rows that are stepped together and had to continue with the others.
	NumIdleSteps int64
	// NumDiscardedSteps is the number of steps discarded because of Blackhole, or by an evaluation without ReturnEpisodes.
	NumDiscardedSteps int64
	// NumDiscardedEpisodes is the number of episodes that ended in the discarded steps.
	NumDiscardedEpisodes int64
	// NumMissingSteps is, for fragments with FractionOfWorkers, the number of steps asked for that were not made.
	NumMissingSteps int64
	// NumNonFiniteSteps is the number of steps delivered with a NaN or an infinity in their reward or an observation.
	NumNonFiniteSteps int64

	// NumRetriedEpisodes is the number of times that episodes were retried because something had failed.
	NumRetriedEpisodes int64
	// RetryReasons has the number of retries by reason, such as `environment_failed` or `worker_lost`.
	RetryReasons map[string]int64
	// NumFailedEpisodes is the number of episodes that the call skipped, with SkipFailedEpisodes.
	NumFailedEpisodes int64
	// EpisodeFailures has the first 64 episodes whose environments raised errors.
	EpisodeFailures []EpisodeFailure
	// NumStragglerEpisodes is the number of episodes that were started a second time on another worker, because the first
	// run took far longer than others.
	NumStragglerEpisodes int64
	// NumReassignedEpisodes is, for exact episodes, the number of delivered episodes that another worker simulated than
	// the one in EpisodeBatch.WorkerIndices.
	NumReassignedEpisodes int64
	// NumBrokenOffEpisodes is, for fragments, the number of episodes that broke off because their rows could not be
	// restored.
	NumBrokenOffEpisodes int64

	// Seed is the root seed of the sequence of episodes. With FirstEpisodeIndex, or for fragments with RowStepCount, it
	// repeats the call.
	Seed uint64
	// FirstEpisodeIndex is the index of the first delivered episode; 0 for fragments.
	FirstEpisodeIndex uint64
	// RowStepCount is, for fragments, the number of steps that each row had made in the sequence before the call.
	RowStepCount uint64
	// PolicyVersion is the version of the policy that acted.
	PolicyVersion int64
	// EnvVersion is the version of the environment.
	EnvVersion int64
	// NumResumptions is the number of interruptions of the stream, each followed by a call that continued it.
	NumResumptions int

	// DroppedInfos has the number of values that the batch lacks because they are no numbers or not of one shape, by the
	// info's name; of a stream, what its messages lack.
	DroppedInfos map[string]int64
	// Workers has each worker's share.
	Workers []WorkerAccount

	// Queued is the time in the queue until admission.
	Queued time.Duration
	// Waiting is the time after that, that the call waited for workers.
	Waiting time.Duration
	// Sending is the time that the call waited for its client to read messages.
	Sending time.Duration
	// Elapsed is the time from admission to the account.
	Elapsed time.Duration
}

// WorkerAccount is a worker's share in a call.
type WorkerAccount struct {
	// WorkerIndex is the worker's index.
	WorkerIndex int
	// NumSimulatedSteps is the number of steps that the worker simulated while the call ran.
	NumSimulatedSteps int64
	// NumSteps is the number of delivered steps that the worker simulated.
	NumSteps int64
	// NumEpisodes is the number of delivered episodes that the worker simulated.
	NumEpisodes int64
	// NumMissingSteps is, for fragments with FractionOfWorkers, the number of steps that the worker did not make because
	// enough others were done.
	NumMissingSteps int64
	// Sampling is the time spent on stepping environments and evaluating the policy.
	Sampling time.Duration
	// Encoding is the time spent on writing messages.
	Encoding time.Duration
}

// EpisodeFailure is an episode whose environment raised an error.
type EpisodeFailure struct {
	// EpisodeIndex is the index of the episode; where rows are stepped together, the lowest one of its block that had not
	// ended.
	EpisodeIndex uint64
	// WorkerIndex is the worker that ran the episode last.
	WorkerIndex int
	// NumAttempts is the number of failed attempts on that worker.
	NumAttempts int
	// Skipped says whether the call skipped the episode.
	Skipped bool
	// Text is where the environment raised its last error, and the error.
	Text string
}

func decodeAccount(message *pb.Account) *Account {
	account := &Account{
		NumSteps:              int64(message.GetStepCount()),
		NumEpisodes:           int64(message.GetEpisodeCount()),
		NumSimulatedSteps:     int64(message.GetSimulatedStepCount()),
		NumCarriedSteps:       int64(message.GetCarriedStepCount()),
		NumPrefetchedSteps:    int64(message.GetPrefetchedStepCount()),
		NumKeptSteps:          int64(message.GetKeptStepCount()),
		NumSupersededSteps:    int64(message.GetSupersededStepCount()),
		NumCancelledSteps:     int64(message.GetCancelledStepCount()),
		NumLostSteps:          int64(message.GetLostStepCount()),
		NumIdleSteps:          int64(message.GetIdleStepCount()),
		NumDiscardedSteps:     int64(message.GetDiscardedStepCount()),
		NumDiscardedEpisodes:  int64(message.GetDiscardedEpisodeCount()),
		NumMissingSteps:       int64(message.GetMissingStepCount()),
		NumNonFiniteSteps:     int64(message.GetNonFiniteStepCount()),
		NumRetriedEpisodes:    int64(message.GetRetriedEpisodeCount()),
		RetryReasons:          counts(message.GetRetryReasons()),
		NumFailedEpisodes:     int64(message.GetFailedEpisodeCount()),
		NumStragglerEpisodes:  int64(message.GetStragglerEpisodeCount()),
		NumReassignedEpisodes: int64(message.GetReassignedEpisodeCount()),
		NumBrokenOffEpisodes:  int64(message.GetBrokenOffEpisodeCount()),
		Seed:                  message.GetSeed(),
		FirstEpisodeIndex:     message.GetFirstEpisodeIndex(),
		RowStepCount:          message.GetRowStepCount(),
		PolicyVersion:         message.GetPolicyVersion(),
		EnvVersion:            message.GetEnvironmentVersion(),
		DroppedInfos:          counts(message.GetDroppedInfos()),
		Queued:                message.GetQueued().AsDuration(),
		Waiting:               message.GetWaiting().AsDuration(),
		Sending:               message.GetSending().AsDuration(),
		Elapsed:               message.GetElapsed().AsDuration(),
	}
	for _, worker := range message.GetWorkers() {
		account.Workers = append(account.Workers, WorkerAccount{
			WorkerIndex:       int(worker.GetWorkerIndex()),
			NumSimulatedSteps: int64(worker.GetSimulatedStepCount()),
			NumSteps:          int64(worker.GetStepCount()),
			NumEpisodes:       int64(worker.GetEpisodeCount()),
			NumMissingSteps:   int64(worker.GetMissingStepCount()),
			Sampling:          worker.GetSampling().AsDuration(),
			Encoding:          worker.GetEncoding().AsDuration(),
		})
	}
	for _, failure := range message.GetEpisodeFailures() {
		account.EpisodeFailures = append(account.EpisodeFailures, EpisodeFailure{
			EpisodeIndex: failure.GetEpisodeIndex(),
			WorkerIndex:  int(failure.GetWorkerIndex()),
			NumAttempts:  int(failure.GetAttemptCount()),
			Skipped:      failure.GetSkipped(),
			Text:         failure.GetText(),
		})
	}
	return account
}

func counts(byName map[string]uint64) map[string]int64 {
	converted := make(map[string]int64, len(byName))
	for name, count := range byName {
		converted[name] = int64(count)
	}
	return converted
}

func (a *Account) withDroppedInfos(dropped map[string]int64) *Account {
	changed := *a
	changed.DroppedInfos = dropped
	for name, count := range a.DroppedInfos {
		changed.DroppedInfos[name] += count
	}
	return &changed
}
