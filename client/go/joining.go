package rollserve

import "fmt"

// Concatenate returns the segments of all batches, in their order, in new arrays; of a single batch, the batch itself.
//
// Infos that a batch lacks become gaps. WorkerIndices and RowIndices are nil if one of the batches has none. The
// account is nil. The error says which columns do not fit together.
func Concatenate(batches ...*EpisodeBatch) (*EpisodeBatch, error) {
	if len(batches) == 0 {
		return nil, mismatch("batches", "at least one", "none")
	}
	joined := &EpisodeBatch{}
	for _, c := range batchColumns {
		if err := c.concatenate(joined, batches); err != nil {
			return nil, err
		}
	}
	return joined, nil
}

// join returns a header of all batches; nil if one batch has segments and no such header.
func join[B, T any](batches []*B, header func(*B) []T) []T {
	size := 0
	for _, batch := range batches {
		size += len(header(batch))
	}
	joined := make([]T, 0, size)
	for _, batch := range batches {
		if header(batch) == nil {
			return nil
		}
		joined = append(joined, header(batch)...)
	}
	return joined
}

// Joined returns the batch with consecutive segments of one episode as one segment; the batch itself if there are none.
//
// A segment is joined to the one before it if both have the same episode index and policy version, if it begins with
// the step after the other's last, and if the other did not end the episode.
func (b *EpisodeBatch) Joined() *EpisodeBatch {
	return b.joinedAt(runs(b.Len(), func(i int) bool { return b.follows(i, b, i-1) }))
}

// joinedAt returns the batch with runs of segments as one segment each.
func (b *EpisodeBatch) joinedAt(begins, ends []int) *EpisodeBatch {
	if len(begins) == b.Len() {
		return b
	}
	joined := *b
	for _, c := range batchColumns {
		switch {
		case c.spec().byStep:
		case c.spec().isLast:
			c.gather(&joined, b, ends)
		default:
			c.gather(&joined, b, begins)
		}
	}
	joined.Lengths = sums(b.Lengths, begins, ends)
	return &joined
}

// follows reports whether a segment is the continuation of a segment of another batch, or of the same one.
func (b *EpisodeBatch) follows(segment int, other *EpisodeBatch, before int) bool {
	return b.EpisodeIndices[segment] == other.EpisodeIndices[before] &&
		b.PolicyVersions[segment] == other.PolicyVersions[before] &&
		b.FirstSteps[segment] == other.FirstSteps[before]+uint64(other.Lengths[before]) &&
		!other.Ended(before)
}

// runs returns where runs of positions begin and end: a position belongs to the run before it if continues says so.
func runs(length int, continues func(int) bool) (begins, ends []int) {
	for i := 0; i < length; i++ {
		if i == 0 || !continues(i) {
			begins, ends = append(begins, i), append(ends, i)
		} else {
			ends[len(ends)-1] = i
		}
	}
	return begins, ends
}

// sums returns the sums of the values of runs.
func sums[T int | uint64](values []T, begins, ends []int) []T {
	added := make([]T, len(begins))
	for i := range begins {
		for _, value := range values[begins[i] : ends[i]+1] {
			added[i] += value
		}
	}
	return added
}

func pick[T any](values []T, positions []int) []T {
	if values == nil {
		return nil
	}
	picked := make([]T, len(positions))
	for i, position := range positions {
		picked[i] = values[position]
	}
	return picked
}

// joinWithAccount returns the batches of a stream as one batch of whole episodes or fragments, with the account, which
// has to count the same episodes and steps, beside those that were read before.
func joinWithAccount(batches []*EpisodeBatch, account *Account, before whole) (*EpisodeBatch, error) {
	dropped := map[string]int64{}
	batch, err := Concatenate(withOneShape(batches, dropped)...)
	if err != nil {
		return nil, malformed(err)
	}
	joined := *batch.Joined()
	if err := checkAccount(&joined, account, before); err != nil {
		return nil, err
	}
	joined.Account = account.withDroppedInfos(dropped)
	return &joined, nil
}

// checkAccount returns an error unless a batch, and what was read before it, has the episodes and steps of an account.
func checkAccount(batch delivered, account *Account, before whole) error {
	numEpisodes, numSteps := before.episodes, before.steps+uint64(batch.NumSteps())
	for part := 0; part < batch.Len(); part++ {
		if batch.Ended(part) {
			numEpisodes++
		}
	}
	got := fmt.Sprintf("%d in %d", numEpisodes, numSteps)
	want := fmt.Sprintf("%d in %d", account.NumEpisodes, account.NumSteps)
	if got != want {
		return malformed(mismatch("account", "the number of episodes that end, in a number of steps, "+want, got))
	}
	return nil
}

// withOneShape returns the batches without the environment's infos whose shape is not the first one of their name, or
// that no common type holds, and counts the values that are dropped. A server does not mix shapes within a message, so
// which values are kept does not depend on how episodes are spread over messages.
func withOneShape(batches []*EpisodeBatch, dropped map[string]int64) []*EpisodeBatch {
	shapes := shapesOfMisfits(batches)
	kept := make([]*EpisodeBatch, len(batches))
	for i, batch := range batches {
		copied := *batch
		copied.EnvInfos = keepFirstShape("env_infos", batch.EnvInfos, shapes, dropped, 0)
		firstRow := 0
		if previous := i - 1; previous >= 0 && batch.follows(0, batches[previous], batches[previous].Len()-1) {
			firstRow = 1 // the infos of this episode were counted with its first segment
		}
		copied.EpisodeInfos = keepFirstShape("episode_infos", batch.EpisodeInfos, shapes, dropped, firstRow)
		kept[i] = &copied
	}
	return kept
}

// shapesOfMisfits returns a shape that no info has for each info that no common type holds.
func shapesOfMisfits(batches []*EpisodeBatch) map[string][]int {
	arrays := map[string][]Array{}
	for _, batch := range batches {
		for field, infos := range map[string]Columns{"env_infos": batch.EnvInfos, "episode_infos": batch.EpisodeInfos} {
			for name, array := range infos {
				key := field + "/" + name
				arrays[key] = append(arrays[key], array)
			}
		}
	}
	shapes := map[string][]int{}
	for key, each := range arrays {
		if _, err := commonType(key, each); err != nil {
			shapes[key] = []int{-1}
		}
	}
	return shapes
}

func keepFirstShape(
	field string, infos Columns, shapes map[string][]int, dropped map[string]int64, firstRow int,
) Columns {
	kept := Columns{}
	for _, name := range infos.Names() {
		array := infos[name]
		if infos.isMask(name) {
			continue
		}
		key := field + "/" + name
		if _, known := shapes[key]; !known {
			shapes[key] = array.rowShape()
		}
		mask, hasMask := infos[maskName(name)]
		if equal(shapes[key], array.rowShape()) {
			kept[name] = array
			if hasMask {
				kept[maskName(name)] = mask
			}
			continue
		}
		for row := firstRow; row < array.Len(); row++ {
			if values := infos.Mask(name); values == nil || values[row] {
				dropped[name]++
			}
		}
	}
	return kept
}
