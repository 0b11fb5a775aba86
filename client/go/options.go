package rollserve

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/rollserve/rollserve/client/go/rollservev1"
)

// Compression is a lossless codec for columns of batches.
type Compression string

// The codecs: LZ4 is faster, Zstd compresses better.
const (
	LZ4  Compression = "lz4"
	Zstd Compression = "zstd"
)

var compressions = map[Compression]pb.Compression{
	LZ4:  pb.Compression_COMPRESSION_LZ4,
	Zstd: pb.Compression_COMPRESSION_ZSTD,
}

func compressionMessages(accepted []Compression) ([]pb.Compression, error) {
	numbers := make([]pb.Compression, len(accepted))
	for i, codec := range accepted {
		number, err := numberOf(fmt.Sprintf("Compression[%d]", i), compressions, codec)
		if err != nil {
			return nil, err
		}
		numbers[i] = number
	}
	return numbers, nil
}

// Some returns a pointer to a value, for options where nil stands for the default.
func Some[T any](value T) *T { return &value }

// orNil returns a pointer to a number; nil for 0, where that stands for the default.
func orNil[T int64 | uint32](number T) *T {
	if number == 0 {
		return nil
	}
	return &number
}

// SamplingOptions are options of calls that sample. The zero value of each is its default; a nil *SamplingOptions has
// all defaults. The comments on SamplingOptions in the protos say more.
type SamplingOptions struct {
	// Agent is an update of the agent for all workers, which the call makes before it samples with the new version. At
	// most 4 MiB; larger ones need UpdateAgent. Not together with a version of the policy.
	Agent AgentUpdate
	// Seed is the root seed of the episodes. By default, the sampler continues its own sequence, where no episode comes
	// twice.
	Seed *uint64
	// FirstEpisodeIndex is the index of the first episode in the sequence of Seed. Not for fragments.
	FirstEpisodeIndex *uint64
	// MaxEpisodeLength is the number of steps after which an episode is truncated, over all of its fragments; 0 for none.
	MaxEpisodeLength int
	// ExpectedPolicyVersion is the version that the current policy must have. By default the version that this client
	// has set last, or is setting, if PolicyVersion is nil; see Config.Shared.
	ExpectedPolicyVersion *int64
	// ExpectedEnvVersion is the version that the current environment must have, in the same way.
	ExpectedEnvVersion *int64
	// MinPolicyVersion is the oldest version that may act.
	MinPolicyVersion *int64
	// PolicyVersion is the version that acts; the current one by default.
	PolicyVersion *int64
	// EnvVersion is the version of the environment; the current one by default.
	EnvVersion *int64
	// ExpectedNumWorkers is the number of workers that the sampler must have; 0 for any.
	ExpectedNumWorkers int
	// Timeout is the time without progress after which the call fails with ErrDeadline; by default Config.Timeout.
	// The context's deadline limits the whole call.
	Timeout time.Duration
	// Compression has the codecs that columns may come in, the preferred one first; by default Config.Compression. An
	// empty slice that is not nil stands for none.
	Compression []Compression
	// Deterministic says whether the agent acts without randomness.
	Deterministic bool
	// Temperatures divide the logits of actions: one number for all episodes, or several; the episode of index i has
	// number i modulo their count. The same holds for the next two.
	Temperatures []float64
	// NoiseScales multiply the standard deviations of actions.
	NoiseScales []float64
	// Epsilons are probabilities of random actions of an epsilon-greedy agent, instead of its own.
	Epsilons []float64
	// PlainFrames says whether stacks of frames come as they are, instead of each frame once. The result is the same.
	PlainFrames bool
	// Prefetch says whether workers continue after this call with what the same call would ask for next.
	Prefetch bool
	// ReturnStates says whether AgentInfos have the recurrent state before each step, as `state/NAME`.
	ReturnStates bool
	// ReturnLastValues says whether the batch has LastValues. The agent needs an info `value`.
	ReturnLastValues bool
	// ReturnLastStates says whether the batch has LastStates.
	ReturnLastStates bool
	// Blackhole says whether to discard what is sampled, to measure sampling alone. Only for streams.
	Blackhole bool
	// SkipFailedEpisodes says whether to leave out episodes whose environments raise errors in every attempt, instead
	// of failing the call. Not for fragments.
	SkipFailedEpisodes bool
	// Deliver has the names of the policies whose segments are delivered, in an environment with many agents; all by
	// default. The others act alike, and their steps count.
	Deliver []string
	// CountAgentSteps says whether the steps that a call for whole episodes asks for are those of all agents, also of
	// those whose policies are not delivered, instead of the environment's.
	CountAgentSteps bool
}

// FragmentOptions are options of calls that sample fragments.
type FragmentOptions struct {
	SamplingOptions
	// SoftHorizon says whether an episode that reaches MaxEpisodeLength ends without a reset, so that the row's next
	// episode begins where this one ends.
	SoftHorizon bool
	// RowStepCount is, with Seed, the number of steps that each row has made: its present position, or the one before
	// the last call, to repeat that call. By default, a seed begins at its first step.
	RowStepCount *uint64
	// FractionOfWorkers is the fraction of the workers that have to make all their steps; as soon as they have, the
	// others stop. By default, all workers make all their steps.
	FractionOfWorkers *float64
}

// EvaluationOptions are options of calls that evaluate; see SamplingOptions for those that are not described here.
type EvaluationOptions struct {
	PolicyVersion         *int64
	ExpectedPolicyVersion *int64
	ExpectedEnvVersion    *int64
	MinPolicyVersion      *int64
	// Env is another environment to act in; the sampler's own stays as it is.
	Env *EnvSpec
	// EnvVersion is the version of the sampler's environment; not together with Env.
	EnvVersion *int64
	// Seed is the root seed of the episodes. The default is the same for every evaluation.
	Seed               *uint64
	FirstEpisodeIndex  uint64
	MaxEpisodeLength   int
	Timeout            time.Duration
	Deterministic      bool
	Temperatures       []float64
	NoiseScales        []float64
	Epsilons           []float64
	SkipFailedEpisodes bool
	// PolicyMaps are maps from agents to policies for this evaluation alone: the episode of index i has the map at
	// position i modulo their number, at most 4096. By default, the sampler's own map.
	PolicyMaps []PolicyMap
	// ReturnEpisodes says whether the result has the episodes themselves; not for populations.
	ReturnEpisodes bool
	// DifferentEpisodes says whether each member of a population has episodes of its own; only for populations.
	DifferentEpisodes bool
}

// maxAgentBytes is the largest size of an agent in a call that samples: what servers accept, less room for the rest.
const maxAgentBytes = 4<<20 - 4<<10

func (o *SamplingOptions) message(config *Config) (*pb.SamplingOptions, error) {
	codecs := o.Compression
	if codecs == nil {
		codecs = config.Compression
	}
	accepted, err := compressionMessages(codecs)
	if err != nil {
		return nil, err
	}
	numWorkers, err := countOf("ExpectedNumWorkers", o.ExpectedNumWorkers)
	if err != nil {
		return nil, err
	}
	message := &pb.SamplingOptions{
		Seed:                       o.Seed,
		FirstEpisodeIndex:          o.FirstEpisodeIndex,
		MaxEpisodeLength:           orNil(int64(o.MaxEpisodeLength)),
		ExpectedPolicyVersion:      o.ExpectedPolicyVersion,
		ExpectedEnvironmentVersion: o.ExpectedEnvVersion,
		MinPolicyVersion:           o.MinPolicyVersion,
		PolicyVersion:              o.PolicyVersion,
		EnvironmentVersion:         o.EnvVersion,
		WorkerCount:                orNil(numWorkers),
		MaxMessageBytes:            Some(uint32(config.MaxMessageBytes)),
		AcceptCompression:          accepted,
		AcceptFrameStacks:          !o.PlainFrames,
		AcceptJoined:               true,
		Prefetch:                   o.Prefetch,
		Blackhole:                  o.Blackhole,
		ReturnStates:               o.ReturnStates,
		ReturnLastValues:           o.ReturnLastValues,
		ReturnLastStates:           o.ReturnLastStates,
		ReturnReturnsBefore:        true,
		SkipFailedEpisodes:         o.SkipFailedEpisodes,
		DeliverPolicies:            o.Deliver,
		CountAgentSteps:            o.CountAgentSteps,
		Exploration:                exploration(o.Deterministic, o.Temperatures, o.NoiseScales, o.Epsilons),
	}
	if o.Agent == nil {
		return message, nil
	}
	namesPolicy := o.PolicyVersion != nil || o.MinPolicyVersion != nil || o.ExpectedPolicyVersion != nil
	if namesPolicy || o.ExpectedEnvVersion != nil {
		return nil, invalid("Agent", "no version of the policy, and no expected version, beside an agent", "some")
	}
	update, err := o.Agent.agentUpdate()
	if err != nil {
		return nil, err
	}
	if size := proto.Size(update); size > maxAgentBytes {
		expected := fmt.Sprintf("at most %d bytes in a call that samples (call UpdateAgent first)", maxAgentBytes)
		return nil, invalid("Agent", expected, size)
	}
	message.AgentUpdate = update
	return message, nil
}

func (o *EvaluationOptions) message() (*pb.EvaluationOptions, error) {
	message := &pb.EvaluationOptions{
		PolicyVersion:              o.PolicyVersion,
		ExpectedPolicyVersion:      o.ExpectedPolicyVersion,
		ExpectedEnvironmentVersion: o.ExpectedEnvVersion,
		MinPolicyVersion:           o.MinPolicyVersion,
		EnvironmentVersion:         o.EnvVersion,
		Seed:                       o.Seed,
		FirstEpisodeIndex:          o.FirstEpisodeIndex,
		MaxEpisodeLength:           orNil(int64(o.MaxEpisodeLength)),
		SkipFailedEpisodes:         o.SkipFailedEpisodes,
		Exploration:                exploration(o.Deterministic, o.Temperatures, o.NoiseScales, o.Epsilons),
	}
	for _, policyMap := range o.PolicyMaps {
		message.PolicyMaps = append(message.PolicyMaps, policyMap.message())
	}
	if o.Env != nil {
		environment, err := o.Env.message()
		if err != nil {
			return nil, err
		}
		message.Environment = environment
	}
	return message, nil
}

// exploration returns how freely the agent acts; nil for its own exploration.
func exploration(deterministic bool, temperatures, noiseScales, epsilons []float64) *pb.Exploration {
	if !deterministic && len(temperatures)+len(noiseScales)+len(epsilons) == 0 {
		return nil
	}
	return &pb.Exploration{
		Deterministic: deterministic, Temperatures: temperatures, NoiseScales: noiseScales, Epsilons: epsilons,
	}
}
