package main

import (
	"crypto/sha256"
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
		"num_steps":            account.NumSteps,
		"num_episodes":         account.NumEpisodes,
		"seed":                 fmt.Sprint(account.Seed),
		"num_resumptions":      account.NumResumptions,
		"num_non_finite_steps": account.NumNonFiniteSteps,
		"dropped_infos":        account.DroppedInfos,
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
	if !b.LastValues.IsZero() {
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
			info["mask"] = digest(rollserve.NewArray(mask))
		}
		described[name] = info
	}
	return described
}

func describeArray(a rollserve.Array) object {
	return object{"dtype": a.DataType, "shape": a.Shape, "sha256": digest(a)}
}

// digest returns the SHA-256 of an array's bytes, in hexadecimal digits.
func digest(a rollserve.Array) string {
	sum := sha256.Sum256(a.Bytes())
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
	for _, kind := range kinds {
		if errors.Is(err, kind.of) {
			return kind.name
		}
	}
	return "server"
}

var kinds = []struct {
	of   error
	name string
}{
	{rollserve.ErrAccess, "access"},
	{rollserve.ErrInvalidArgument, "invalid_argument"},
	{rollserve.ErrPrecondition, "precondition"},
	{rollserve.ErrLimit, "limit"},
	{rollserve.ErrUnavailable, "unavailable"},
	{rollserve.ErrCancelled, "cancelled"},
	{rollserve.ErrDeadline, "deadline"},
}

var wordBoundary = regexp.MustCompile(`([a-z])([A-Z])`)

// statusName returns the name of the status code as gRPC writes it, such as NOT_FOUND.
func statusName(err *rollserve.Error) string {
	name := strings.ToUpper(wordBoundary.ReplaceAllString(err.Code.String(), "${1}_${2}"))
	return strings.Replace(name, "CANCELED", "CANCELLED", 1)
}
