package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strings"

	rollserve "github.com/rollserve/rollserve/client/go"
)

func describeBatch(b *rollserve.EpisodeBatch) object {
	described := describeSegments(b)
	described["account"] = describeAccount(b.Account)
	return described
}

func describeAccount(account *rollserve.Account) object {
	return object{
		"num_steps":            account.GetStepCount(),
		"num_episodes":         account.GetEpisodeCount(),
		"seed":                 fmt.Sprint(account.GetSeed()),
		"num_resumptions":      account.NumResumptions,
		"num_non_finite_steps": account.GetNonFiniteStepCount(),
		"dropped_infos":        account.GetDroppedInfos(),
	}
}

// describeSegments describes a batch without its account.
func describeSegments(b *rollserve.EpisodeBatch) object {
	described := object{
		"episode_indices":     b.EpisodeIndices,
		"first_steps":         b.FirstSteps,
		"lengths":             b.Lengths,
		"terminated":          b.Terminated,
		"truncated":           b.Truncated,
		"policy_versions":     b.PolicyVersions,
		"env_seeds":           b.EnvSeeds,
		"returns":             b.Returns(),
		"observations":        describeLeaves(b.Observations),
		"last_observations":   describeLeaves(b.LastObservations),
		"actions":             describeLeaves(b.Actions),
		"rewards":             object{"": describeArray(rollserve.NewArray(b.Rewards))},
		"agent_infos":         describeInfos(b.AgentInfos),
		"env_infos":           describeInfos(b.EnvInfos),
		"episode_infos":       describeInfos(b.EpisodeInfos),
		"initial_states":      describeInfos(b.InitialStates),
		"last_states":         describeInfos(b.LastStates),
		"environment_actions": describeLeaves(b.EnvActions),
		"returns_before":      describeSums(b.ReturnsBefore),
	}
	if b.RawRewards != nil {
		described["raw_rewards"] = object{"": describeArray(rollserve.NewArray(b.RawRewards))}
	}
	if len(b.LastValues.Shape) > 0 {
		described["last_values"] = object{"": describeArray(b.LastValues)}
	}
	return described
}

// describeSums returns numbers as JSON has them, with nil for those that are unknown.
func describeSums(sums []float64) []any {
	described := make([]any, len(sums))
	for i, sum := range sums {
		if !math.IsNaN(sum) {
			described[i] = sum
		}
	}
	return described
}

func describeLeaves(columns rollserve.Columns) object {
	described := object{}
	for name, column := range columns {
		described[name] = describeArray(column)
	}
	return described
}

// describeInfos describes columns that can have gaps.
func describeInfos(columns rollserve.Columns) object {
	described := object{}
	for name, column := range columns {
		if _, isMask := columns[strings.TrimPrefix(name, "_")]; isMask && strings.HasPrefix(name, "_") {
			continue
		}
		info := describeArray(column)
		if mask := columns.Mask(name); mask != nil {
			info["mask"] = digest(mask)
		}
		described[name] = info
	}
	return described
}

func describeArray(a rollserve.Array) object {
	name := strings.ToLower(strings.TrimPrefix(a.DataType.String(), "DATA_TYPE_"))
	return object{"dtype": name, "shape": a.Shape, "sha256": digests[name](a)}
}

var digests = map[string]func(rollserve.Array) string{
	"bool":    digestOf[bool],
	"int8":    digestOf[int8],
	"int16":   digestOf[int16],
	"int32":   digestOf[int32],
	"int64":   digestOf[int64],
	"uint8":   digestOf[uint8],
	"uint16":  digestOf[uint16],
	"uint32":  digestOf[uint32],
	"uint64":  digestOf[uint64],
	"float16": digestOf[rollserve.Float16],
	"float32": digestOf[float32],
	"float64": digestOf[float64],
}

func digestOf[T rollserve.Element](a rollserve.Array) string {
	values, err := rollserve.Values[T](a)
	if err != nil {
		panic(err) // only for another type than the array's own
	}
	return digest(values)
}

// digest returns the SHA-256 of a slice's elements as little-endian bytes, in hexadecimal digits.
func digest(values any) string {
	var content bytes.Buffer
	if err := binary.Write(&content, binary.LittleEndian, values); err != nil {
		panic(err) // only for types without a size
	}
	sum := sha256.Sum256(content.Bytes())
	return hex.EncodeToString(sum[:])
}

// describeError describes the failure of an operation.
func describeError(err error) object {
	var missing unsupported
	if errors.As(err, &missing) {
		return object{"unsupported": missing.Error()}
	}
	var known *rollserve.Error
	if !errors.As(err, &known) {
		return object{"error": object{"kind": "", "message": err.Error()}}
	}
	return object{"error": object{
		"kind":       kindOf(err),
		"status":     statusName(known),
		"reason":     known.Reason,
		"field":      known.Field,
		"message":    known.Message,
		"request_id": known.RequestID,
	}}
}

func kindOf(err error) string {
	switch {
	case is[*rollserve.AccessError](err):
		return "access"
	case is[*rollserve.InvalidArgumentError](err):
		return "invalid_argument"
	case is[*rollserve.PreconditionError](err):
		return "precondition"
	case is[*rollserve.LimitError](err):
		return "limit"
	case is[*rollserve.UnavailableError](err):
		return "unavailable"
	case is[*rollserve.CancelledError](err):
		return "cancelled"
	case is[*rollserve.DeadlineError](err):
		return "deadline"
	default:
		return "server"
	}
}

func is[E error](err error) bool {
	var found E
	return errors.As(err, &found)
}

var wordBoundary = regexp.MustCompile(`([a-z])([A-Z])`)

// statusName returns the name of the status code as gRPC writes it, such as NOT_FOUND.
func statusName(err *rollserve.Error) string {
	name := strings.ToUpper(wordBoundary.ReplaceAllString(err.Code.String(), "${1}_${2}"))
	return strings.Replace(name, "CANCELED", "CANCELLED", 1)
}
