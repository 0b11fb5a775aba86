package rollserve

import (
	"fmt"

	pb "github.com/rollserve/rollserve/client/go/rollservev1"
)

// sessionPosition is where the rows of a session are, over all its streams. One that is taken up again shows steps that
// the client may have.
type sessionPosition struct {
	apart    bool // whether rows do not wait for each other
	numSteps uint64
	// With apart: how many steps each row has made, -1 for one that was not shown; and those that it was asked for.
	made, asked []int64
}

// begin sets the number of rows, once.
func (p *sessionPosition) begin(numRows int) {
	if p.made != nil {
		return
	}
	p.made, p.asked = make([]int64, numRows), make([]int64, numRows)
	for row := range p.made {
		p.made[row] = -1
	}
}

// advance drops what a step shows again, and reports whether anything is left. The rows of a worker step together.
func (p *sessionPosition) advance(step *pb.DrivenStep) (bool, error) {
	if !p.apart {
		isNew := step.GetStep() >= p.numSteps
		if isNew {
			p.numSteps = step.GetStep() + 1
		}
		return isNew, nil
	}
	var news []*pb.DrivenRows
	for i, worker := range step.GetWorkers() {
		rows, counts, isNew := worker.GetRows(), worker.GetRowStepCounts(), false
		if count := len(worker.GetEpisodeIndices()); len(rows) != count || len(counts) != count {
			return false, mismatch(fmt.Sprintf("workers[%d].rows", i), fmt.Sprintf("%d rows, and step counts", count), len(rows))
		}
		for j, row := range rows {
			if row < 0 || row >= int64(len(p.made)) {
				return false, mismatch(fmt.Sprintf("workers[%d].rows[%d]", i, j), fmt.Sprintf("below %d", len(p.made)), row)
			}
			if counts[j] > p.made[row] {
				p.made[row], isNew = counts[j], true
			}
		}
		if isNew {
			news = append(news, worker)
		}
	}
	step.Workers = news
	return len(news) > 0, nil
}

// ask returns how many steps the rows have made that are to act, and counts one more for each.
func (p *sessionPosition) ask(rows []int64) ([]int64, error) {
	counts := make([]int64, len(rows))
	for i, row := range rows {
		if row < 0 || row >= int64(len(p.made)) || p.asked[row] > p.made[row] {
			for _, before := range rows[:i] {
				p.asked[before] = p.made[before]
			}
			return nil, invalid(fmt.Sprintf("Rows[%d]", i), "a row that waits for actions", row)
		}
		counts[i] = p.made[row]
		p.asked[row] = p.made[row] + 1
	}
	return counts, nil
}

// isBehind reports whether a step has followed the actions.
func (p *sessionPosition) isBehind(actions *pb.DrivenActions) bool {
	if !p.apart {
		return actions.GetStep()+1 < p.numSteps
	}
	for i, row := range actions.GetRows() {
		if actions.GetRowStepCounts()[i] >= p.made[row] {
			return false
		}
	}
	return true
}
