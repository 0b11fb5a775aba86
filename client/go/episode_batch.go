package rollserve

import (
	"fmt"
	"math"
)

// EpisodeBatch holds N segments, which are episodes or parts of episodes, with T steps in all, as flat columns.
//
// The rows of a segment are contiguous, and segments follow each other in the order of the headers, the slices with an
// element for each segment. A batch that a call returns, or a message of a stream, belongs to the caller, who may write
// to it. Segment and Split return parts of it that share its memory.
type EpisodeBatch struct {
	// Observations (T, *O) are the observations before each step.
	Observations Columns
	// LastObservations (N, *O) are the observations after the last step of each segment.
	LastObservations Columns
	// Actions (T, *A) are the actions of each step.
	Actions Columns
	// Rewards (T) are the rewards of each step.
	Rewards []float64
	// AgentInfos (T, *I) are infos of the agent, such as `log_prob`.
	AgentInfos Columns
	// EnvInfos (T, *I) are infos of the environment's steps.
	EnvInfos Columns
	// EpisodeInfos (N, *I) are infos of the environment's resets.
	EpisodeInfos Columns
	// InitialStates (N, *H) are recurrent states before the first step of each segment.
	InitialStates Columns
	// LastStates (N, *H) are recurrent states after the last step of each segment, with SamplingOptions.ReturnLastStates.
	LastStates Columns
	// LastValues (N) are the values of the last observations, 0 where the segment terminated, of the type of the info
	// `value`, with SamplingOptions.ReturnLastValues; otherwise the zero Array.
	LastValues Array
	// RawRewards (T) are the rewards as the environment returned them, where transforms change rewards; otherwise nil.
	RawRewards []float64
	// EnvActions (T, *A) are the actions as the environment got them, where transforms change actions; otherwise nil.
	EnvActions Columns

	// Lengths (N) are the numbers of steps of each segment, at least 1.
	Lengths []int
	// Terminated (N) says whether the last step reached a terminal state.
	Terminated []bool
	// Truncated (N) says whether a limit ended the episode at the last step. Both flags may be set. Neither is set for
	// a part of an episode that goes on.
	Truncated []bool
	// PolicyVersions (N) are the versions that acted.
	PolicyVersions []int64
	// EpisodeIndices (N) are the indices of the episodes.
	EpisodeIndices []uint64
	// FirstSteps (N) are the numbers of steps of the episode before the segment, including earlier calls.
	FirstSteps []uint64
	// ReturnsBefore (N) are the sums of the environment's own rewards of the episode before the segment, including
	// earlier calls; NaN where the server does not tell.
	ReturnsBefore []float64
	// EnvSeeds (N) are the seeds that the environment was reset with.
	EnvSeeds []uint32
	// WorkerIndices (N) are the workers that episodes are bound to; nil if they are bound to none.
	WorkerIndices []uint32
	// RowIndices (N) are the rows that segments ran in, over the rows of all workers; nil except for fragments.
	RowIndices []uint64

	// Account says what became of everything that was simulated for the call whose whole result the batch is; nil for
	// other batches.
	Account *Account
}

// Len returns N, the number of segments.
func (b *EpisodeBatch) Len() int { return len(b.Lengths) }

// NumSteps returns T, the number of steps of all segments.
func (b *EpisodeBatch) NumSteps() int { return len(b.Rewards) }

// String describes the batch in one line.
func (b *EpisodeBatch) String() string {
	return fmt.Sprintf("EpisodeBatch(%d segments, %d steps, %d ended)", b.Len(), b.NumSteps(), b.numEnded())
}

// Returns returns the sum of the rewards of each segment, (N), added in the order of the steps.
func (b *EpisodeBatch) Returns() []float64 { return b.sums(b.Rewards) }

// RawReturns returns the sum of the environment's own rewards of each segment, (N), without transforms.
func (b *EpisodeBatch) RawReturns() []float64 { return b.sums(b.rawRewards()) }

// EpisodeReturns returns the sum of the environment's own rewards of each segment's episode up to the segment's last
// step, (N), including earlier calls; NaN where the server does not tell.
func (b *EpisodeBatch) EpisodeReturns() []float64 {
	sums := b.RawReturns()
	for i, before := range b.ReturnsBefore {
		sums[i] += before
	}
	return sums
}

func (b *EpisodeBatch) rawRewards() []float64 {
	if b.RawRewards == nil {
		return b.Rewards
	}
	return b.RawRewards
}

func (b *EpisodeBatch) sums(rewards []float64) []float64 {
	sums, step := make([]float64, b.Len()), 0
	for i, length := range b.Lengths {
		for _, reward := range rewards[step : step+length] {
			sums[i] += reward
		}
		step += length
	}
	return sums
}

// unknownReturns returns what is known of the sums before segments without being told: 0 at an episode's start.
func unknownReturns(firstSteps []uint64) []float64 {
	sums := make([]float64, len(firstSteps))
	for i, step := range firstSteps {
		if step > 0 {
			sums[i] = math.NaN()
		}
	}
	return sums
}

// Ended reports whether a segment has the last step of its episode.
func (b *EpisodeBatch) Ended(segment int) bool { return b.Terminated[segment] || b.Truncated[segment] }

// Segment returns a batch of one segment that shares the memory of this batch.
func (b *EpisodeBatch) Segment(segment int) *EpisodeBatch {
	begin := 0
	for _, length := range b.Lengths[:segment] {
		begin += length
	}
	return b.part(begin, begin+b.Lengths[segment], segment, segment+1)
}

// Split returns one batch for each segment. They share the memory of this batch.
func (b *EpisodeBatch) Split() []*EpisodeBatch {
	parts, begin := make([]*EpisodeBatch, b.Len()), 0
	for i, length := range b.Lengths {
		parts[i] = b.part(begin, begin+length, i, i+1)
		begin += length
	}
	return parts
}

// part returns the given ranges of steps and of their segments.
func (b *EpisodeBatch) part(firstStep, endStep, first, end int) *EpisodeBatch {
	part := &EpisodeBatch{}
	for _, c := range batchColumns {
		if c.spec().byStep {
			c.cut(part, b, firstStep, endStep)
		} else {
			c.cut(part, b, first, end)
		}
	}
	return part
}

// take returns some segments, in the given order, in new arrays.
func (b *EpisodeBatch) take(segments []int) *EpisodeBatch {
	steps, taken := b.stepsOf(segments), &EpisodeBatch{}
	for _, c := range batchColumns {
		if c.spec().byStep {
			c.gather(taken, b, steps)
		} else {
			c.gather(taken, b, segments)
		}
	}
	return taken
}

// stepsOf returns the positions of the steps of some segments.
func (b *EpisodeBatch) stepsOf(segments []int) []int {
	begins, end := make([]int, b.Len()), 0
	for i, length := range b.Lengths {
		begins[i] = end
		end += length
	}
	steps := make([]int, 0, end)
	for _, segment := range segments {
		for step := 0; step < b.Lengths[segment]; step++ {
			steps = append(steps, begins[segment]+step)
		}
	}
	return steps
}

// slice returns a part of a header, which may be nil; appending to the part does not overwrite what follows it.
func slice[T any](values []T, begin, end int) []T {
	if values == nil {
		return nil
	}
	return values[begin:end:end]
}

func (b *EpisodeBatch) numEnded() int {
	count := 0
	for i := range b.Lengths {
		if b.Ended(i) {
			count++
		}
	}
	return count
}

func (b *EpisodeBatch) episode(segment int) uint64 { return b.EpisodeIndices[segment] }

func (b *EpisodeBatch) steps(segment int) (env, agents uint64) {
	return uint64(b.Lengths[segment]), uint64(b.Lengths[segment])
}

func (b *EpisodeBatch) after(numSteps int, _, _ uint64) delivered {
	return b.withoutFirstSteps(numSteps)
}

// withoutFirstSteps returns the batch without its first steps. A segment that loses some of its steps begins later in
// its episode; its recurrent state is a gap, unless the agent's infos have the states of every step.
func (b *EpisodeBatch) withoutFirstSteps(numSteps int) *EpisodeBatch {
	dropped, end := 0, 0
	for dropped < b.Len() && end+b.Lengths[dropped] <= numSteps {
		end += b.Lengths[dropped]
		dropped++
	}
	rest := b.part(numSteps, b.NumSteps(), dropped, b.Len())
	if cut := numSteps - end; cut > 0 {
		rest.Lengths = append([]int{}, rest.Lengths...)
		rest.FirstSteps = append([]uint64{}, rest.FirstSteps...)
		rest.Lengths[0] -= cut
		rest.FirstSteps[0] += uint64(cut)
		rest.ReturnsBefore = append([]float64{}, rest.ReturnsBefore...)
		for _, reward := range b.rawRewards()[end:numSteps] {
			rest.ReturnsBefore[0] += reward
		}
		rest.InitialStates = laterStates(rest.InitialStates, rest.AgentInfos)
	}
	return rest
}

// laterStates returns the initial states of segments after the first one has lost some of its first steps.
func laterStates(states, agentInfos Columns) Columns {
	later := Columns{}
	for name, column := range states {
		if states.isMask(name) {
			continue
		}
		state := concatenate([]Array{column})
		first := state.Rows(0, 1)
		every, known := agentInfos["state/"+name]
		if known {
			copy(first.data, every.Rows(0, 1).data)
		} else {
			copy(first.data, zeros(first.DataType, 1, first.rowShape()).data)
		}
		later[name] = state
		mask := append([]bool{}, states.Mask(name)...)
		if len(mask) == 0 && known {
			continue
		}
		for len(mask) < column.Len() {
			mask = append(mask, true)
		}
		mask[0] = known
		later[maskName(name)] = NewArray(mask)
	}
	return later
}
