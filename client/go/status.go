package rollserve

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	pb "github.com/rollserve/rollserve/client/go/rollservev1"
)

// Status is the state of a sampler and of its workers.
type Status struct {
	// Sampler is the sampler's name.
	Sampler string
	// ServerVersion is the version of the server's software.
	ServerVersion string
	// Owner is the principal that created the sampler; empty for the default one.
	Owner string
	// Lease is the time without a call after which the sampler is deleted; 0 for never.
	Lease time.Duration

	// Envs has one environment for all workers; or one for each worker; or, after RowEnvUpdates, one for each row of each
	// worker. Arguments that the server's operator has given are left out; see HiddenArguments.
	Envs []EnvSpec
	// HiddenArguments has the names of the arguments that Envs lacks, such as `kwargs.level`.
	HiddenArguments []string
	// EnvVersion is the version of the environments; 1 for those that the server was started with.
	EnvVersion int64
	// ObservationSpace is the space of observations.
	ObservationSpace Space
	// ActionSpace is the space of actions.
	ActionSpace Space
	// Agents are the names of the possible agents of an environment with many agents; empty with one agent.
	Agents []string
	// Reproducibility says which unit of work the same seed gives again.
	Reproducibility Reproducibility
	// NumEpisodesPerRow is the number of episodes of each row in a block; 0 for other classes than ReproducibilityBlock.
	NumEpisodesPerRow int

	// AgentKinds has the kind of each worker's agent, such as `mlp`, or one kind for all; empty before the first agent.
	AgentKinds []string
	// PolicyVersion is the version of the policy; 0 before the first one.
	PolicyVersion int64
	// PolicyAge is how long ago this version was set; 0 before the first one.
	PolicyAge time.Duration
	// Policies has the current version of each policy by its name, where the agent is Policies.
	Policies map[string]int64

	// Seed is the root seed of the sampler's own sequence of episodes.
	Seed uint64
	// NextEpisodeIndex is the index in that sequence of the episode that the next call starts with.
	NextEpisodeIndex uint64
	// NumRunningCalls is the number of sampling calls and evaluations that run now.
	NumRunningCalls int
	// NumQueuedCalls is the number of sampling calls and evaluations that queue or are paused now.
	NumQueuedCalls int

	// Workers are the workers, in the order of their indices; behind them the ones that are leaving.
	Workers []WorkerStatus
	// MinHealthyWorkers is the number of healthy workers that a call or an update needs to start.
	MinHealthyWorkers int
	// Counters count since the sampler's start.
	Counters Counters
	// Profiles are the environments that EnvSpec.ID may name as `profile:NAME`.
	Profiles []EnvProfile
	// Packages has the versions of the packages that environments run with, by name.
	Packages map[string]string
}

// WorkerHealth says whether a worker accepts work; empty for a state that only later versions know.
type WorkerHealth string

// The states of workers.
const (
	// WorkerHealthy is the state of a worker that accepts work.
	WorkerHealthy WorkerHealth = "healthy"
	// WorkerLost is the state of a worker whose process is gone, while another is being started in its place.
	WorkerLost WorkerHealth = "lost"
	// WorkerFailed is the state of a worker that was lost too often, and is given up for up to an hour.
	WorkerFailed WorkerHealth = "failed"
	// WorkerLeaving is the state of a worker that was removed, and ends after the last call that started with it.
	WorkerLeaving WorkerHealth = "leaving"
)

var workerHealths = map[WorkerHealth]pb.WorkerHealth{
	WorkerHealthy: pb.WorkerHealth_WORKER_HEALTH_HEALTHY,
	WorkerLost:    pb.WorkerHealth_WORKER_HEALTH_LOST,
	WorkerFailed:  pb.WorkerHealth_WORKER_HEALTH_FAILED,
	WorkerLeaving: pb.WorkerHealth_WORKER_HEALTH_LEAVING,
}

// WorkerStatus is the state of a worker.
type WorkerStatus struct {
	// WorkerIndex is the worker's index, from 0.
	WorkerIndex int
	// Health says whether the worker accepts work.
	Health WorkerHealth
	// NumRows is the number of environments that the worker steps at once.
	NumRows int
	// NumSimulatedSteps is the number of steps that the worker has simulated.
	NumSimulatedSteps int64
	// ProcessID is the id of the worker's process; 0 if it has never started, and for clients on other machines.
	ProcessID int
	// Host is the worker's machine; empty if it has never started, and for clients on other machines.
	Host string
	// NumRestarts is the number of times that the worker was replaced, failed attempts included.
	NumRestarts int64
	// LastFailure says why the last process of this worker was lost or could not be started; empty if that never happened.
	LastFailure string
}

// Counters are counts since a sampler's start.
type Counters struct {
	// NumCompletedCalls is the number of sampling calls that completed.
	NumCompletedCalls int64
	// NumFailedCalls is the number of sampling calls that ended with an error.
	NumFailedCalls int64
	// NumCancelledCalls is the number of sampling calls that their client, a deadline or the server's stop ended.
	NumCancelledCalls int64
	// NumSteps is the number of steps delivered.
	NumSteps int64
	// NumEpisodes is the number of episodes delivered.
	NumEpisodes int64
	// NumSimulatedSteps is the number of steps simulated.
	NumSimulatedSteps int64
	// NumNonFiniteSteps is the number of steps delivered with a NaN or an infinity in their reward or an observation.
	NumNonFiniteSteps int64
	// MessageBytes is the number of bytes of messages delivered.
	MessageBytes int64
	// Uptime is the age of the sampler.
	Uptime time.Duration
	// NumWorkerRestarts is the number of times that workers were replaced.
	NumWorkerRestarts int64
	// NumEnvFailures is the number of errors that environments raised in episodes.
	NumEnvFailures int64
	// NumRetriedEpisodes is the number of times that episodes were retried because something had failed.
	NumRetriedEpisodes int64
	// NumFailedEpisodes is the number of episodes that were skipped.
	NumFailedEpisodes int64
	// NumStragglerEpisodes is the number of episodes that were started a second time although nothing had failed.
	NumStragglerEpisodes int64
}

// EnvProfile is an environment that the server's operator has declared.
type EnvProfile struct {
	// Name is the name of the profile.
	Name string
	// Description is the operator's text about it.
	Description string
	// ArgumentsSchema is the JSON Schema of the arguments that it accepts.
	ArgumentsSchema map[string]any
}

// NumWorkers returns the number of workers for calls that begin now.
func (s *Status) NumWorkers() int {
	count := 0
	for _, worker := range s.Workers {
		if worker.Health != WorkerLeaving {
			count++
		}
	}
	return count
}

// Status returns the state of the sampler and of its workers, and its counters.
func (s *Sampler) Status(ctx context.Context) (*Status, error) {
	response, err := answer(ctx, s, 0, func(ctx context.Context) (*pb.GetSamplerResponse, error) {
		return s.service.GetSampler(ctx, &pb.GetSamplerRequest{Sampler: s.config.Sampler})
	})
	if err != nil {
		return nil, err
	}
	return decodeStatus(response)
}

func decodeStatus(message *pb.GetSamplerResponse) (*Status, error) {
	observationSpace, actionSpace, err := decodeSpaces(message.GetObservationSpace(), message.GetActionSpace())
	if err != nil {
		return nil, err
	}
	counters := message.GetCounters()
	status := &Status{
		Sampler:           message.GetSampler(),
		ServerVersion:     message.GetServerVersion(),
		Owner:             message.GetOwner(),
		Lease:             message.GetLease().AsDuration(),
		HiddenArguments:   message.GetHiddenArguments(),
		EnvVersion:        message.GetEnvironmentVersion(),
		ObservationSpace:  observationSpace,
		ActionSpace:       actionSpace,
		Agents:            message.GetAgents(),
		Reproducibility:   nameOf(reproducibilities, message.GetReproducibility()),
		NumEpisodesPerRow: int(message.GetEpisodesPerRow()),
		AgentKinds:        message.GetAgentKinds(),
		PolicyVersion:     message.GetPolicyVersion(),
		PolicyAge:         message.GetPolicyAge().AsDuration(),
		Policies:          message.GetPolicies(),
		Seed:              message.GetSeed(),
		NextEpisodeIndex:  message.GetNextEpisodeIndex(),
		NumRunningCalls:   int(message.GetRunningCallCount()),
		NumQueuedCalls:    int(message.GetQueuedCallCount()),
		MinHealthyWorkers: int(message.GetMinHealthyWorkerCount()),
		Packages:          message.GetPackages(),
		Counters: Counters{
			NumCompletedCalls:    int64(counters.GetCompletedCallCount()),
			NumFailedCalls:       int64(counters.GetFailedCallCount()),
			NumCancelledCalls:    int64(counters.GetCancelledCallCount()),
			NumSteps:             int64(counters.GetStepCount()),
			NumEpisodes:          int64(counters.GetEpisodeCount()),
			NumSimulatedSteps:    int64(counters.GetSimulatedStepCount()),
			NumNonFiniteSteps:    int64(counters.GetNonFiniteStepCount()),
			MessageBytes:         int64(counters.GetMessageBytes()),
			Uptime:               counters.GetUptime().AsDuration(),
			NumWorkerRestarts:    int64(counters.GetWorkerRestartCount()),
			NumEnvFailures:       int64(counters.GetEnvironmentFailureCount()),
			NumRetriedEpisodes:   int64(counters.GetRetriedEpisodeCount()),
			NumFailedEpisodes:    int64(counters.GetFailedEpisodeCount()),
			NumStragglerEpisodes: int64(counters.GetStragglerEpisodeCount()),
		},
	}
	for i, environment := range message.GetEnvironments() {
		spec, err := decodeEnvSpec(environment)
		if err != nil {
			return nil, malformed(fmt.Errorf("environments[%d].%w", i, err))
		}
		status.Envs = append(status.Envs, spec)
	}
	for _, worker := range message.GetWorkers() {
		status.Workers = append(status.Workers, WorkerStatus{
			WorkerIndex:       int(worker.GetWorkerIndex()),
			Health:            nameOf(workerHealths, worker.GetHealth()),
			NumRows:           int(worker.GetRowCount()),
			NumSimulatedSteps: int64(worker.GetSimulatedStepCount()),
			ProcessID:         int(worker.GetProcessId()),
			Host:              worker.GetHost(),
			NumRestarts:       int64(worker.GetRestartCount()),
			LastFailure:       worker.GetLastFailure(),
		})
	}
	for i, profile := range message.GetProfiles() {
		schema := map[string]any(nil)
		if err := decodeJSON(profile.GetArgumentsSchemaJson(), &schema); err != nil {
			return nil, malformed(fmt.Errorf("profiles[%d].arguments_schema_json: %w", i, err))
		}
		status.Profiles = append(status.Profiles, EnvProfile{
			Name: profile.GetName(), Description: profile.GetDescription(), ArgumentsSchema: schema,
		})
	}
	return status, nil
}

// decodeJSON reads a value of JSON, which may be left out.
func decodeJSON(text string, to any) error {
	if text == "" {
		return nil
	}
	return json.Unmarshal([]byte(text), to)
}
