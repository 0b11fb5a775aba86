package rollserve

import (
	"fmt"

	pb "github.com/rollserve/rollserve/client/go/rollservev1"
)

// DrivenStep has the observations of N rows for the next actions of a session, and what followed the last ones. These
// are all rows of all workers, or, of a session with MinReady, those that are ready.
//
// Rows are reset in the step that ends an episode: such a row's observation is the first one of its next episode, and
// LastObservations have the last one of the episode that has ended.
type DrivenStep struct {
	// Number is the number of the step that actions are wanted for, from 0; with MinReady, of what was received.
	Number uint64
	// Observations (N, *O) are the observations for the next actions.
	Observations Columns
	// EpisodeIndices (N) are the indices of the episodes that the rows' next steps belong to.
	EpisodeIndices []int64
	// Rewards (N) are the rewards of the last step; zeros before the first.
	Rewards []float64
	// Terminated (N) says whether the environment has ended the row's episode with the last step.
	Terminated []bool
	// Truncated (N) says whether a limit has. Both flags may be set.
	Truncated []bool
	// EndedRows (E) are the positions, among these rows, of those whose episodes have ended with the last step.
	EndedRows []int
	// LastObservations (E, *O) are the last observations of these episodes.
	LastObservations Columns
	// EnvSeeds (N) are the seeds of the last reset of each row's environment; of rows that are stepped at once, the seed
	// of their joint reset.
	EnvSeeds []uint64
	// Infos (N, *I) are what came with the observations, with DriveOptions.ReturnInfos.
	Infos Columns
	// LastInfos (E, *I) are what came with the last observations, in the same form.
	LastInfos Columns
	// Rows (N) are the numbers of these rows among all rows.
	Rows []int
	// RowSteps (N) is how many steps each of them has made in the session.
	RowSteps []int64
}

// Ended returns whether the row's episode has ended with the last step, (N).
func (s *DrivenStep) Ended() []bool {
	ended := make([]bool, len(s.Terminated))
	for _, row := range s.EndedRows {
		ended[row] = true
	}
	return ended
}

// decodeStep returns a step of all rows, or of those that are ready. Its arrays share the memory of the message if one
// worker has all rows.
func decodeStep(message *pb.DrivenStep, numRows int, isReady bool) (*DrivenStep, error) {
	if isReady {
		numRows = 0
		for _, rows := range message.GetWorkers() {
			numRows += len(rows.GetEpisodeIndices())
		}
	}
	step := &DrivenStep{
		Number: message.GetStep(), Rewards: make([]float64, numRows),
		Terminated: make([]bool, numRows), Truncated: make([]bool, numRows), EndedRows: []int{},
	}
	var observations, lastObservations, infos, lastInfos []Columns
	var counts, endedCounts []int
	for i, rows := range message.GetWorkers() {
		begin, count, ended := len(step.EpisodeIndices), len(rows.GetEpisodeIndices()), len(rows.GetEndedRows())
		if err := checkRows(rows, numRows-begin); err != nil {
			return nil, fmt.Errorf("workers[%d].%w", i, err)
		}
		for j := 0; j < count; j++ {
			row, made := begin+j, int64(message.GetStep())
			if isReady {
				row, made = int(rows.GetRows()[j]), rows.GetRowStepCounts()[j]
			}
			step.Rows, step.RowSteps = append(step.Rows, row), append(step.RowSteps, made)
		}
		copy(step.Rewards[begin:], rows.GetRewards())
		step.EpisodeIndices = append(step.EpisodeIndices, rows.GetEpisodeIndices()...)
		step.EnvSeeds = append(step.EnvSeeds, rows.GetEnvironmentSeeds()...)
		for j, position := range rows.GetEndedRows() {
			row := begin + int(position)
			step.EndedRows = append(step.EndedRows, row)
			step.Terminated[row], step.Truncated[row] = rows.GetTerminated()[j], rows.GetTruncated()[j]
		}
		for _, group := range []struct {
			name    string
			tensors []*pb.NamedTensor
			count   int
			parts   *[]Columns
		}{
			{"observations", rows.GetObservations(), count, &observations},
			{"last_observations", rows.GetLastObservations(), ended, &lastObservations},
			{"infos", rows.GetInfos(), count, &infos},
			{"last_infos", rows.GetLastInfos(), ended, &lastInfos},
		} {
			columns, err := decodeNamed(group.tensors)
			if err != nil {
				return nil, fmt.Errorf("workers[%d].%s%w", i, group.name, err)
			}
			for name, column := range columns {
				if len(column.Shape) == 0 || column.Len() != group.count {
					path := fmt.Sprintf("workers[%d].%s[%q]", i, group.name, name)
					return nil, mismatch(path, fmt.Sprintf("%d rows", group.count), column)
				}
			}
			*group.parts = append(*group.parts, columns)
		}
		counts, endedCounts = append(counts, count), append(endedCounts, ended)
	}
	if len(counts) == 0 || len(step.EpisodeIndices) != numRows {
		return nil, mismatch("workers", fmt.Sprintf("%d rows in all", numRows), len(step.EpisodeIndices))
	}
	var err error
	if step.Observations, err = columnsOfParts("observations", observations); err != nil {
		return nil, err
	}
	var ending []Columns // of workers where episodes have ended
	for i, part := range lastObservations {
		if endedCounts[i] > 0 {
			ending = append(ending, part)
		}
	}
	if len(ending) == 0 {
		ending = []Columns{step.Observations.rows(0, 0)}
	}
	if step.LastObservations, err = columnsOfParts("last_observations", ending); err != nil {
		return nil, err
	}
	if step.Infos, err = concatenateInfos("infos", infos, counts); err != nil {
		return nil, err
	}
	step.LastInfos, err = concatenateInfos("last_infos", lastInfos, endedCounts)
	return step, err
}

// checkRows returns an error unless a worker's rows are as many as its numbers say, and at most the rest of all rows.
func checkRows(rows *pb.DrivenRows, rest int) error {
	count, ended, isFirst := len(rows.GetEpisodeIndices()), len(rows.GetEndedRows()), len(rows.GetRewards()) == 0
	switch {
	case count > rest:
		return mismatch("episode_indices", fmt.Sprintf("at most %d", rest), count)
	case len(rows.GetEnvironmentSeeds()) != count:
		return mismatch("environment_seeds", fmt.Sprintf("%d values", count), len(rows.GetEnvironmentSeeds()))
	case !isFirst && len(rows.GetRewards()) != count:
		return mismatch("rewards", fmt.Sprintf("%d values, or none", count), len(rows.GetRewards()))
	case len(rows.GetTerminated()) != ended || len(rows.GetTruncated()) != ended:
		return mismatch("ended_rows", "as many as terminated and truncated", ended)
	}
	for i, row := range rows.GetEndedRows() {
		if row < 0 || row >= int64(count) {
			return mismatch(fmt.Sprintf("ended_rows[%d]", i), fmt.Sprintf("a position below %d", count), row)
		}
	}
	return nil
}

// columnsOfParts returns columns whose rows come in parts; of one part, they are its arrays.
func columnsOfParts(field string, parts []Columns) (Columns, error) {
	if len(parts) == 1 {
		return parts[0], nil
	}
	return concatenateColumns(field, parts)
}
