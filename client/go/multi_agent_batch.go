package rollserve

import (
	"fmt"
	"sort"
)

// MultiAgentBatch holds parts of E episodes of an environment with many agents, or fragments of them, with T
// environment steps in all.
//
// An episode has one segment for each life of each agent: from its first observation to its end. All segments in which
// a policy acted are one EpisodeBatch, whose headers are those of lives and count the agents' own steps.
type MultiAgentBatch struct {
	// Agents are the names of the environment's possible agents.
	Agents []string

	// EpisodeIndices (E) are the indices of the episodes.
	EpisodeIndices []uint64
	// FirstSteps (E) are the numbers of environment steps of the episode before this part.
	FirstSteps []uint64
	// Lengths (E) are the numbers of environment steps.
	Lengths []int
	// Terminated (E) says whether the episode ended with its last step here, and an agent was terminated then.
	Terminated []bool
	// Truncated (E) says whether the episode ended with its last step here, and an agent was truncated then.
	Truncated []bool
	// AgentStepCounts (E) are the numbers of steps of all agents, also of those whose policies are not delivered.
	AgentStepCounts []uint64

	// Policies are the policies that acted. The batches of a stream have one for each version of a policy.
	Policies []*PolicyBatch
	// GlobalStates (T, *S) are the environment's global states before each environment step, with EnvSpec.GlobalState;
	// otherwise the zero Array. Its rows are those of Joint.
	GlobalStates Array
	// LastGlobalStates (E, *S) are the global states after the last step of each part; the zero Array alike.
	LastGlobalStates Array

	// Account says what became of everything that was simulated for the call whose whole result the batch is, in
	// environment steps; nil for other batches.
	Account *Account
}

// PolicyBatch holds the segments of N lives of agents, with T steps, in which a policy acted.
type PolicyBatch struct {
	// Policy is the name of the policy.
	Policy string
	// Batch has the segments. Its PolicyVersions are versions of this policy.
	Batch *EpisodeBatch
	// AgentPositions (N) are the agents of the segments: their positions among the environment's agents.
	AgentPositions []int
	// EnvSteps (T) are the environment steps of the episodes in which the steps were made, from 0. Of fragments, the step
	// may be one of an earlier fragment, where what followed was not known.
	EnvSteps []uint64
	// RewardsBefore (N) are the sums of the rewards that the agents got in their lives before their first actions; 0 for
	// segments that begin within a life.
	RewardsBefore []float64
}

// AgentSteps are an agent's part in the T environment steps of a batch, with zeros where it did not act.
type AgentSteps struct {
	// Acted (T) says whether the agent acted in the step.
	Acted []bool
	// Observations (T, *O) are its observations before the step.
	Observations Columns
	// Actions (T, *A) are its actions.
	Actions Columns
	// Rewards (T) are the rewards of its actions: the sums of what it got until it acted again.
	Rewards []float64
	// Terminated (T) says whether its life was terminated after the action.
	Terminated []bool
	// Truncated (T) says whether its life was truncated after the action.
	Truncated []bool
	// PolicyVersions (T) are the versions of the policies that acted.
	PolicyVersions []int64
}

// Len returns E, the number of parts of episodes.
func (b *MultiAgentBatch) Len() int { return len(b.Lengths) }

// NumSteps returns T, the number of environment steps.
func (b *MultiAgentBatch) NumSteps() int {
	sum := 0
	for _, length := range b.Lengths {
		sum += length
	}
	return sum
}

// NumAgentSteps returns the number of steps of all agents, also of those whose policies are not delivered.
func (b *MultiAgentBatch) NumAgentSteps() int {
	sum := 0
	for _, count := range b.AgentStepCounts {
		sum += int(count)
	}
	return sum
}

// Ended reports whether a part has the last step of its episode.
func (b *MultiAgentBatch) Ended(part int) bool { return b.Terminated[part] || b.Truncated[part] }

// String describes the batch in one line.
func (b *MultiAgentBatch) String() string {
	return fmt.Sprintf("MultiAgentBatch(%d episodes, %d environment steps)", b.Len(), b.NumSteps())
}

// ByPolicy returns the segments in which each policy acted, by episode, agent and time. The error says which columns of
// parts of a policy do not fit together; batches of whole calls have none.
func (b *MultiAgentBatch) ByPolicy() (map[string]*EpisodeBatch, error) {
	joined, err := b.Joined()
	if err != nil {
		return nil, err
	}
	batches := make(map[string]*EpisodeBatch, len(joined.Policies))
	for _, part := range joined.Policies {
		batches[part.Policy] = part.Batch
	}
	return batches, nil
}

// ByAgent returns the segments of each agent that acted, by episode and time, whatever policies acted. Infos that only
// some of the policies have are gaps of the others. The error says which infos of one name differ in shape.
func (b *MultiAgentBatch) ByAgent() (map[string]*EpisodeBatch, error) {
	joined, err := b.Joined()
	if err != nil {
		return nil, err
	}
	parts := map[int][]*EpisodeBatch{}
	for _, part := range joined.Policies {
		for position, segments := range part.segmentsByAgent() {
			parts[position] = append(parts[position], part.Batch.take(segments))
		}
	}
	batches := make(map[string]*EpisodeBatch, len(parts))
	for position, of := range parts {
		batch, err := Concatenate(of...)
		if err != nil {
			return nil, err
		}
		order := positions(batch.Len())
		sort.SliceStable(order, func(i, j int) bool {
			return batch.EpisodeIndices[order[i]] < batch.EpisodeIndices[order[j]]
		})
		batches[b.Agents[position]] = batch.take(order)
	}
	return batches, nil
}

// Joint returns the steps of each agent that acted, aligned to the environment steps of all episodes, which follow each
// other as in Lengths. Of fragments, a step whose environment step an earlier batch has is left out; ConcatenateMany
// makes a batch with both.
func (b *MultiAgentBatch) Joint() map[string]*AgentSteps {
	rows, joint := b.rowsOfSteps(), map[string]*AgentSteps{}
	for _, part := range b.Policies {
		step := 0
		for segment, length := range part.Batch.Lengths {
			agent := b.Agents[part.AgentPositions[segment]]
			if joint[agent] == nil {
				joint[agent] = newAgentSteps(part.Batch, b.NumSteps())
			}
			joint[agent].put(part, segment, step, rows)
			step += length
		}
	}
	return joint
}

// Joined returns the batch with one part for each episode and one batch for each policy, in the order of the policies'
// names. The error says which columns of parts of a policy do not fit together.
func (b *MultiAgentBatch) Joined() (*MultiAgentBatch, error) {
	parts := map[string][]*PolicyBatch{}
	for _, part := range b.Policies {
		parts[part.Policy] = append(parts[part.Policy], part)
	}
	begins, ends := runs(b.Len(), b.continues)
	joined := &MultiAgentBatch{
		Agents:           b.Agents,
		EpisodeIndices:   pick(b.EpisodeIndices, begins),
		FirstSteps:       pick(b.FirstSteps, begins),
		Terminated:       pick(b.Terminated, ends),
		Truncated:        pick(b.Truncated, ends),
		Lengths:          sums(b.Lengths, begins, ends),
		AgentStepCounts:  sums(b.AgentStepCounts, begins, ends),
		GlobalStates:     b.GlobalStates,
		LastGlobalStates: b.LastGlobalStates,
		Account:          b.Account,
	}
	if !b.LastGlobalStates.IsZero() && len(ends) < b.Len() {
		joined.LastGlobalStates = b.LastGlobalStates.gather(ends)
	}
	for policy, of := range parts {
		whole, err := concatenatePolicy(of)
		if err != nil {
			return nil, fmt.Errorf("policies[%q].%w", policy, err)
		}
		joined.Policies = append(joined.Policies, whole.joined())
	}
	sort.Slice(joined.Policies, func(i, j int) bool { return joined.Policies[i].Policy < joined.Policies[j].Policy })
	return joined, nil
}

// ConcatenateMany returns the parts of all batches of one environment, in their order; Joined makes whole episodes of
// them. The account is nil. The error says what does not fit together.
func ConcatenateMany(batches ...*MultiAgentBatch) (*MultiAgentBatch, error) {
	if len(batches) == 0 {
		return nil, mismatch("batches", "at least one", "none")
	}
	whole := &MultiAgentBatch{
		Agents:          batches[0].Agents,
		EpisodeIndices:  join(batches, func(b *MultiAgentBatch) []uint64 { return b.EpisodeIndices }),
		FirstSteps:      join(batches, func(b *MultiAgentBatch) []uint64 { return b.FirstSteps }),
		Lengths:         join(batches, func(b *MultiAgentBatch) []int { return b.Lengths }),
		Terminated:      join(batches, func(b *MultiAgentBatch) []bool { return b.Terminated }),
		Truncated:       join(batches, func(b *MultiAgentBatch) []bool { return b.Truncated }),
		AgentStepCounts: join(batches, func(b *MultiAgentBatch) []uint64 { return b.AgentStepCounts }),
	}
	states, last := make([]Columns, len(batches)), make([]Columns, len(batches))
	for i, batch := range batches {
		if !equal(batch.Agents, whole.Agents) {
			return nil, mismatch("agents", fmt.Sprintf("%q in each batch", whole.Agents), fmt.Sprintf("%q", batch.Agents))
		}
		if batch.GlobalStates.IsZero() != batches[0].GlobalStates.IsZero() {
			return nil, mismatch("global_states", "states in all batches or in none", "some without")
		}
		states[i], last[i] = Columns{"": batch.GlobalStates}, Columns{"": batch.LastGlobalStates}
		whole.Policies = append(whole.Policies, batch.Policies...)
	}
	if !batches[0].GlobalStates.IsZero() {
		for field, parts := range map[string][]Columns{"global_states": states, "last_global_states": last} {
			columns, err := concatenateColumns(field, parts)
			if err != nil {
				return nil, err
			}
			if field == "global_states" {
				whole.GlobalStates = columns[""]
			} else {
				whole.LastGlobalStates = columns[""]
			}
		}
	}
	return whole, nil
}

// continues reports whether a part goes on where the part before it stops.
func (b *MultiAgentBatch) continues(part int) bool {
	return b.EpisodeIndices[part] == b.EpisodeIndices[part-1] &&
		b.FirstSteps[part] == b.FirstSteps[part-1]+uint64(b.Lengths[part-1])
}

// envStep is an environment step of an episode.
type envStep struct{ episode, step uint64 }

// rowsOfSteps returns the position of each environment step among all of the batch.
func (b *MultiAgentBatch) rowsOfSteps() map[envStep]int {
	rows := make(map[envStep]int, b.NumSteps())
	for part, length := range b.Lengths {
		for step := 0; step < length; step++ {
			rows[envStep{b.EpisodeIndices[part], b.FirstSteps[part] + uint64(step)}] = len(rows)
		}
	}
	return rows
}

func newAgentSteps(model *EpisodeBatch, numSteps int) *AgentSteps {
	empty := func(array Array) Array { return zeros(array.DataType, numSteps, array.rowShape()) }
	return &AgentSteps{
		Acted:          make([]bool, numSteps),
		Observations:   model.Observations.mapped(empty),
		Actions:        model.Actions.mapped(empty),
		Rewards:        make([]float64, numSteps),
		Terminated:     make([]bool, numSteps),
		Truncated:      make([]bool, numSteps),
		PolicyVersions: make([]int64, numSteps),
	}
}

// put writes the steps of a segment, whose first step of its batch is given, to the rows of their environment steps.
func (s *AgentSteps) put(part *PolicyBatch, segment, first int, rows map[envStep]int) {
	batch := part.Batch
	end := first + batch.Lengths[segment]
	for step := first; step < end; step++ {
		row, known := rows[envStep{batch.EpisodeIndices[segment], part.EnvSteps[step]}]
		if !known {
			continue
		}
		s.Acted[row], s.Rewards[row] = true, batch.Rewards[step]
		s.PolicyVersions[row] = batch.PolicyVersions[segment]
		for name, column := range batch.Observations {
			s.Observations[name].setRow(row, column, step)
		}
		for name, column := range batch.Actions {
			s.Actions[name].setRow(row, column, step)
		}
		if step == end-1 {
			s.Terminated[row], s.Truncated[row] = batch.Terminated[segment], batch.Truncated[segment]
		}
	}
}

// concatenatePolicy returns the segments of all parts, which are of one policy, in their order.
func concatenatePolicy(parts []*PolicyBatch) (*PolicyBatch, error) {
	if len(parts) == 1 {
		return parts[0], nil
	}
	batches := make([]*EpisodeBatch, len(parts))
	for i, part := range parts {
		batches[i] = part.Batch
	}
	batch, err := Concatenate(batches...)
	if err != nil {
		return nil, err
	}
	return &PolicyBatch{
		Policy:         parts[0].Policy,
		Batch:          batch,
		AgentPositions: join(parts, func(p *PolicyBatch) []int { return p.AgentPositions }),
		EnvSteps:       join(parts, func(p *PolicyBatch) []uint64 { return p.EnvSteps }),
		RewardsBefore:  join(parts, func(p *PolicyBatch) []float64 { return p.RewardsBefore }),
	}, nil
}

// joined returns the segments by episode, agent and time, where parts of one life are one segment.
func (p *PolicyBatch) joined() *PolicyBatch {
	order := positions(p.Batch.Len())
	sort.SliceStable(order, func(i, j int) bool {
		one, other := order[i], order[j]
		if p.Batch.EpisodeIndices[one] != p.Batch.EpisodeIndices[other] {
			return p.Batch.EpisodeIndices[one] < p.Batch.EpisodeIndices[other]
		}
		return p.AgentPositions[one] < p.AgentPositions[other]
	})
	ordered := p
	if !sort.IntsAreSorted(order) {
		ordered = p.take(order)
	}
	begins, ends := runs(len(order), func(i int) bool {
		return ordered.AgentPositions[i] == ordered.AgentPositions[i-1] && ordered.Batch.follows(i, ordered.Batch, i-1)
	})
	joined := *ordered
	joined.Batch = ordered.Batch.joinedAt(begins, ends)
	joined.AgentPositions = pick(ordered.AgentPositions, begins)
	joined.RewardsBefore = pick(ordered.RewardsBefore, begins)
	return &joined
}

// take returns some segments, in the given order, in new arrays.
func (p *PolicyBatch) take(segments []int) *PolicyBatch {
	return &PolicyBatch{
		Policy:         p.Policy,
		Batch:          p.Batch.take(segments),
		AgentPositions: pick(p.AgentPositions, segments),
		EnvSteps:       pick(p.EnvSteps, p.Batch.stepsOf(segments)),
		RewardsBefore:  pick(p.RewardsBefore, segments),
	}
}

// segmentsByAgent returns the segments of each agent, by its position.
func (p *PolicyBatch) segmentsByAgent() map[int][]int {
	segments := map[int][]int{}
	for segment, position := range p.AgentPositions {
		segments[position] = append(segments[position], segment)
	}
	return segments
}

func (b *MultiAgentBatch) episode(part int) uint64 { return b.EpisodeIndices[part] }

func (b *MultiAgentBatch) steps(part int) (env, agents uint64) {
	return uint64(b.Lengths[part]), b.AgentStepCounts[part]
}

// after returns the batch without first steps that were received before. The number of the agents' other steps is exact
// also where policies are not delivered, of whose steps the batch knows only the number.
func (b *MultiAgentBatch) after(numSteps int, again, before uint64) delivered {
	rest := b.withoutFirstSteps(numSteps)
	if rest.Len() == b.Len() {
		rest.AgentStepCounts[0] = b.AgentStepCounts[0] + again - before
	}
	return rest
}

// withoutFirstSteps returns the batch without the first environment steps of its first episode, as many as it has at
// most. AgentStepCounts lose the agents' steps among them that are here.
func (b *MultiAgentBatch) withoutFirstSteps(numSteps int) *MultiAgentBatch {
	stop, numDropped := b.FirstSteps[0]+uint64(numSteps), uint64(0)
	rest := &MultiAgentBatch{Agents: b.Agents, GlobalStates: b.GlobalStates, LastGlobalStates: b.LastGlobalStates}
	for _, part := range b.Policies {
		kept, dropped := part.withoutStepsBefore(b.EpisodeIndices[0], stop)
		numDropped += dropped
		if kept != nil {
			rest.Policies = append(rest.Policies, kept)
		}
	}
	first := 0
	if numSteps == b.Lengths[0] {
		first = 1
	}
	rest.EpisodeIndices, rest.Terminated = b.EpisodeIndices[first:], b.Terminated[first:]
	rest.Truncated = b.Truncated[first:]
	rest.FirstSteps = append([]uint64{}, b.FirstSteps[first:]...)
	rest.Lengths = append([]int{}, b.Lengths[first:]...)
	rest.AgentStepCounts = append([]uint64{}, b.AgentStepCounts[first:]...)
	if first == 0 {
		rest.FirstSteps[0] += uint64(numSteps)
		rest.Lengths[0] -= numSteps
		rest.AgentStepCounts[0] -= numDropped
	}
	if !b.GlobalStates.IsZero() {
		rest.GlobalStates = b.GlobalStates.Rows(numSteps, b.GlobalStates.Len())
		rest.LastGlobalStates = b.LastGlobalStates.Rows(first, b.Len())
	}
	return rest
}

// withoutStepsBefore returns the batch without the steps of an episode before an environment step, nil if there are no
// others; and the number of steps that it lacks then.
func (p *PolicyBatch) withoutStepsBefore(episode, stop uint64) (*PolicyBatch, uint64) {
	kept, batches, numDropped, first := &PolicyBatch{Policy: p.Policy}, []*EpisodeBatch(nil), uint64(0), 0
	for i, segment := range p.Batch.Split() {
		steps := p.EnvSteps[first : first+segment.NumSteps()]
		first += segment.NumSteps()
		dropped := 0
		if segment.EpisodeIndices[0] == episode {
			dropped = sort.Search(len(steps), func(step int) bool { return steps[step] >= stop })
		}
		numDropped += uint64(dropped)
		if dropped == len(steps) {
			continue
		}
		before := p.RewardsBefore[i]
		if dropped > 0 {
			segment, before = segment.withoutFirstSteps(dropped), 0
		}
		batches = append(batches, segment)
		kept.AgentPositions = append(kept.AgentPositions, p.AgentPositions[i])
		kept.EnvSteps = append(kept.EnvSteps, steps[dropped:]...)
		kept.RewardsBefore = append(kept.RewardsBefore, before)
	}
	if len(batches) == 0 {
		return nil, numDropped
	}
	batch, err := Concatenate(batches...)
	if err != nil {
		panic(err) // parts of one batch fit together
	}
	kept.Batch = batch
	return kept, numDropped
}

// positions returns the numbers from 0 to a length.
func positions(length int) []int {
	all := make([]int, length)
	for i := range all {
		all[i] = i
	}
	return all
}
