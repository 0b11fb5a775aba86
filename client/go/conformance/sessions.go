package main

import (
	"context"
	"time"

	rollserve "github.com/rollserve/rollserve/client/go"
)

// sessionOperation is an operation of a session.
type sessionOperation struct {
	Do         string
	Actions    arrays
	AgentInfos arrays `json:"agent_infos"`

	AfterSeconds float64 `json:"after_seconds"`
}

func drive(ctx context.Context, c *client, o *operation) (object, error) {
	options, err := o.Options.sampling()
	if err != nil {
		return nil, err
	}
	infos, err := o.AgentInfos.decoded()
	if err != nil {
		return nil, err
	}
	settings := &rollserve.DriveOptions{
		Seed: options.Seed, MaxEpisodeLength: options.MaxEpisodeLength, EnvVersion: options.EnvVersion,
		FragmentLength: o.FragmentLength, AgentInfos: infos, ReturnInfos: o.Infos,
		Blackhole: o.Record != nil && !*o.Record, MinReady: o.MinReady, Lease: seconds(o.LeaseSeconds),
	}
	session, err := c.Drive(ctx, settings)
	if err != nil {
		return nil, err
	}
	defer func() { session.Close() }()
	resume := func(after float64) (err error) {
		session.Close()
		time.Sleep(seconds(after))
		session, err = c.ResumeSession(ctx, session.Token(), settings)
		return err
	}
	results := make([]object, len(o.Operations))
	for i, content := range o.Operations {
		var asked sessionOperation
		result, err := object{}, decode(content, &asked)
		if err == nil && asked.Do == "resume" {
			err = resume(asked.AfterSeconds)
		} else if err == nil {
			result, err = performIn(session, o.NextStep, &asked)
		}
		if err != nil {
			result = describeError(err)
		}
		results[i] = result
	}
	return object{"results": results}, nil
}

func seconds(number float64) time.Duration { return time.Duration(number * float64(time.Second)) }

// performIn performs an operation of a session, and describes its result.
func performIn(session *rollserve.Session, nextStep bool, o *sessionOperation) (object, error) {
	switch o.Do {
	case "observe":
		return describeStep(session.Observe())
	case "step":
		return act(session, nextStep, o)
	case "rows":
		return actApart(session, o)
	case "batch":
		batch, err := session.Batch()
		if err != nil {
			return nil, err
		}
		return object{"batch": describeSegments(batch)}, nil
	case "end":
		account, err := session.End()
		if err != nil {
			return nil, err
		}
		return object{"account": describeAccount(account)}, nil
	default:
		return nil, unsupported("the session's operation " + o.Do)
	}
}

func act(session *rollserve.Session, nextStep bool, o *sessionOperation) (object, error) {
	actions, err := o.Actions.decoded()
	if err != nil {
		return nil, err
	}
	infos, err := o.AgentInfos.decoded()
	if err != nil {
		return nil, err
	}
	options := &rollserve.StepOptions{AgentInfos: infos}
	if nextStep {
		before, err := session.Observe()
		if err != nil {
			return nil, err
		}
		options.Idle = before.Ended()
	}
	return describeStep(session.Step(actions, options))
}

// actApart acts in rows as they become ready, and describes what each has shown, by step and row.
func actApart(session *rollserve.Session, o *sessionOperation) (object, error) {
	actions, err := o.Actions.decoded()
	if err != nil {
		return nil, err
	}
	infos, err := o.AgentInfos.decoded()
	if err != nil {
		return nil, err
	}
	numSteps := 0
	for _, column := range actions {
		numSteps = column.Len()
	}
	shown := &shownRows{rewards: map[int]rollserve.Array{}, observations: map[string]map[int]rollserve.Array{}}
	for session.NumRows() == 0 || len(shown.rewards) < (numSteps+1)*session.NumRows() {
		step, err := session.Recv()
		if err != nil {
			return nil, err
		}
		numRows := session.NumRows()
		shown.add(step, numRows)
		var rows, places []int
		for i, made := range step.RowSteps {
			if int(made) < numSteps {
				rows, places = append(rows, step.Rows[i]), append(places, int(made)*numRows+step.Rows[i])
			}
		}
		if len(rows) > 0 {
			options := &rollserve.SendOptions{Rows: rows, AgentInfos: rowsAt(infos, places)}
			if err := session.Send(rowsAt(actions, places), options); err != nil {
				return nil, err
			}
		}
	}
	return object{"rows": shown.describe(numSteps+1, session.NumRows())}, nil
}

// shownRows is what rows have shown, by step and row in one number.
type shownRows struct {
	rewards      map[int]rollserve.Array
	observations map[string]map[int]rollserve.Array
}

func (s *shownRows) add(step *rollserve.DrivenStep, numRows int) {
	for i, row := range step.Rows {
		place := int(step.RowSteps[i])*numRows + row
		s.rewards[place] = rollserve.NewArray(step.Rewards[i : i+1])
		for name, column := range step.Observations {
			if s.observations[name] == nil {
				s.observations[name] = map[int]rollserve.Array{}
			}
			s.observations[name][place] = column.Rows(i, i+1)
		}
	}
}

func (s *shownRows) describe(numSteps, numRows int) object {
	observations := object{}
	for name, rows := range s.observations {
		observations[name] = describeArray(joined(rows, numSteps, numRows))
	}
	return object{
		"observations": observations,
		"rewards":      object{"": describeArray(joined(s.rewards, numSteps, numRows))},
	}
}

// joined returns an array (T, N, …) of rows by step and row.
func joined(rows map[int]rollserve.Array, numSteps, numRows int) rollserve.Array {
	var data []byte
	for place := 0; place < numSteps*numRows; place++ {
		data = append(data, rows[place].Bytes()...)
	}
	return arrayOf(rows[0].DataType, append([]int{numSteps, numRows}, rows[0].Shape[1:]...), data)
}

// rowsAt returns the rows of columns (T, N, …) at some places, by step and row in one number.
func rowsAt(columns rollserve.Columns, places []int) rollserve.Columns {
	chosen := rollserve.Columns{}
	for name, column := range columns {
		shape := column.Shape[2:]
		size := len(column.Bytes()) / (column.Shape[0] * column.Shape[1])
		var data []byte
		for _, place := range places {
			data = append(data, column.Bytes()[place*size:(place+1)*size]...)
		}
		chosen[name] = arrayOf(column.DataType, append([]int{len(places)}, shape...), data)
	}
	return chosen
}

// arrayOf returns an array whose form is known to be right.
func arrayOf(dataType rollserve.DataType, shape []int, data []byte) rollserve.Array {
	array, err := rollserve.ArrayFromBytes(dataType, shape, data)
	if err != nil {
		panic(err)
	}
	return array
}

func describeStep(step *rollserve.DrivenStep, err error) (object, error) {
	if err != nil {
		return nil, err
	}
	return object{"step": object{
		"number":            step.Number,
		"episode_indices":   step.EpisodeIndices,
		"env_seeds":         step.EnvSeeds,
		"terminated":        step.Terminated,
		"truncated":         step.Truncated,
		"ended_rows":        step.EndedRows,
		"rewards":           object{"": describeArray(rollserve.NewArray(step.Rewards))},
		"observations":      describeLeaves(step.Observations),
		"last_observations": describeLeaves(step.LastObservations),
		"infos":             describeInfos(step.Infos),
		"last_infos":        describeInfos(step.LastInfos),
	}}, nil
}
