package rollserve

import (
	"fmt"
	"math"
	"sync"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4"

	pb "github.com/rollserve/rollserve/client/go/rollservev1"
)

const (
	// maxRawBytes is the largest decompressed size of a message: the wire contract has no larger messages.
	maxRawBytes = 256 << 20
	maxAxes     = 32
	// maxElements is more than any machine holds; the bytes of as many can be counted in 64 bits.
	maxElements = 1 << 59
)

// decodeBatch returns a batch of a stream. Its arrays share the memory of the message, except for compressed columns
// and stacks of frames. numRows is the number of rows of all workers of a fragment call, otherwise 0.
func decodeBatch(message *pb.EpisodeBatch, numRows uint64) (*EpisodeBatch, error) {
	batch := &EpisodeBatch{}
	for _, c := range batchColumns {
		if err := c.decode(batch, message); err != nil {
			return nil, err
		}
	}
	if batch.ReturnsBefore == nil {
		batch.ReturnsBefore = unknownReturns(batch.FirstSteps)
	}
	if numRows > 0 {
		batch.RowIndices = make([]uint64, len(batch.EpisodeIndices))
		for i, index := range batch.EpisodeIndices {
			batch.RowIndices[i] = index % numRows
		}
	}
	if err := checkLengths(batch); err != nil {
		return nil, err
	}
	if err := decodeFrameStacks(batch, message); err != nil {
		return nil, err
	}
	for _, c := range batchColumns {
		if err := c.check(batch); err != nil {
			return nil, err
		}
	}
	return batch, checkLastObservations(batch)
}

func decodeFrameStacks(batch *EpisodeBatch, message *pb.EpisodeBatch) error {
	for _, stack := range message.GetFrameStacks() {
		name := stack.GetName()
		_, hasSome := batch.Observations[name]
		if _, hasLast := batch.LastObservations[name]; hasSome || hasLast {
			return mismatch(fmt.Sprintf("frame_stacks[%q]", name), "a leaf that observations lack", "one of them")
		}
		frames, err := decodeTensor(stack.GetFrames(), true)
		if err != nil {
			return fmt.Errorf("frame_stacks[%q].frames.%w", name, err)
		}
		observations, last, err := unstackFrames(frames, int(stack.GetFrameCount()), batch.Lengths)
		if err != nil {
			return fmt.Errorf("frame_stacks[%q].%w", name, err)
		}
		batch.Observations[name], batch.LastObservations[name] = observations, last
	}
	return nil
}

// checkLengths returns an error unless there is a length of at least 1 for each segment, and a reward for each step.
func checkLengths(batch *EpisodeBatch) error {
	numSteps := 0
	for i, length := range batch.Lengths {
		if length < 1 {
			return mismatch(fmt.Sprintf("lengths[%d]", i), "at least 1", length)
		}
		numSteps += length
	}
	if numSteps != batch.NumSteps() {
		return mismatch("rewards", fmt.Sprintf("%d steps, the sum of lengths", numSteps), batch.NumSteps())
	}
	return nil
}

// checkLastObservations returns an error unless they have the leaves of the observations.
func checkLastObservations(batch *EpisodeBatch) error {
	if len(batch.Observations) != len(batch.LastObservations) {
		return mismatch("last_observations", fmt.Sprintf("leaves %q", batch.Observations.Names()),
			fmt.Sprintf("%q", batch.LastObservations.Names()))
	}
	for name, last := range batch.LastObservations {
		model, known := batch.Observations[name]
		if !known || model.DataType != last.DataType || !equal(model.rowShape(), last.rowShape()) {
			expected := fmt.Sprintf("rows as in observations, %v", model)
			return mismatch(fmt.Sprintf("last_observations[%q]", name), expected, last)
		}
	}
	return nil
}

// decodeNamed returns named tensors as columns.
func decodeNamed(tensors []*pb.NamedTensor) (Columns, error) {
	columns := make(Columns, len(tensors))
	for _, named := range tensors {
		name := named.GetName()
		if _, known := columns[name]; known {
			return nil, mismatch(fmt.Sprintf("[%q]", name), "unique names", "this name twice")
		}
		array, err := decodeTensor(named.GetTensor(), true)
		if err != nil {
			return nil, fmt.Errorf("[%q].%w", name, err)
		}
		columns[name] = array
	}
	return columns, nil
}

// decodeTensor returns a tensor as an array that shares its memory, unless it is compressed.
func decodeTensor(tensor *pb.Tensor, isColumn bool) (Array, error) {
	dataType := nameOf(dataTypes, tensor.GetDataType())
	size := dataType.Size()
	if size == 0 {
		return Array{}, mismatch("data_type", "a member of DataType", int32(tensor.GetDataType()))
	}
	if len(tensor.GetShape()) > maxAxes {
		return Array{}, mismatch("shape", fmt.Sprintf("at most %d sizes", maxAxes), len(tensor.GetShape()))
	}
	shape, count := make([]int, len(tensor.GetShape())), int64(1)
	for i, length := range tensor.GetShape() {
		if length < 0 {
			return Array{}, mismatch("shape", "sizes of at least 0", tensor.GetShape())
		}
		if length > 0 && count > maxElements/length {
			return Array{}, mismatch("shape", "sizes whose product is at most 2^59", tensor.GetShape())
		}
		shape[i] = int(length)
		if length > 0 {
			count *= length
		}
	}
	if count > int64(math.MaxInt/size) {
		return Array{}, mismatch("shape", "no more elements than this machine can hold", tensor.GetShape())
	}
	data, numBytes := tensor.GetData(), product(shape)*size
	if number := tensor.GetCompression(); number != pb.Compression_COMPRESSION_UNSPECIFIED {
		if !isColumn {
			return Array{}, mismatch("compression", "none, as only columns of batches may be compressed", number)
		}
		compression := nameOf(compressions, number)
		if compression == "" {
			return Array{}, mismatch("compression", "a member of Compression", int32(number))
		}
		var err error
		if data, err = decompress(data, compression, numBytes); err != nil {
			return Array{}, err
		}
	}
	if len(data) != numBytes {
		return Array{}, mismatch("data", fmt.Sprintf("%d bytes", numBytes), len(data))
	}
	if dataType == Bool {
		for _, value := range data {
			if value > 1 { // Go's truth values are undefined for other bytes
				return Array{}, mismatch("data", "truth values of 0 or 1", value)
			}
		}
	}
	return Array{DataType: dataType, Shape: shape, data: inLittleEndian(data, size)}, nil
}

// unstackFrames returns the observations (T, K, *F) and last observations (N, K, *F) of segments whose frames
// (T + N·K, *F) come once each: for each segment, numFrames = K more than it has steps.
func unstackFrames(frames Array, numFrames int, lengths []int) (observations, last Array, err error) {
	if numFrames < 2 {
		return observations, last, mismatch("frame_count", "at least 2", numFrames)
	}
	numSteps := 0
	for _, length := range lengths {
		numSteps += length
	}
	if expected := numSteps + len(lengths)*numFrames; len(frames.Shape) == 0 || frames.Len() != expected {
		return observations, last, mismatch("frames", fmt.Sprintf("%d frames", expected), frames)
	}
	frameBytes := frames.rowBytes()
	if frameBytes > 0 && numSteps+len(lengths) > maxRawBytes/frameBytes/numFrames {
		return observations, last, mismatch("frames", "at most 256 MiB of observations", frames)
	}
	rowShape := append([]int{numFrames}, frames.rowShape()...)
	observations = zeros(frames.DataType, numSteps, rowShape)
	last = zeros(frames.DataType, len(lengths), rowShape)
	stackBytes, to := numFrames*frameBytes, observations.data
	from := frames.data
	for segment, length := range lengths {
		for step := 0; step < length; step++ {
			copy(to[:stackBytes], from[step*frameBytes:])
			to = to[stackBytes:]
		}
		copy(last.data[segment*stackBytes:(segment+1)*stackBytes], from[length*frameBytes:])
		from = from[(length+numFrames)*frameBytes:]
	}
	return observations, last, nil
}

// maxRatios has the largest number of bytes that a compressed byte can stand for, by the definition of the formats.
var maxRatios = map[Compression]int{LZ4: 255, Zstd: 1 << 15}

// decompress returns data as it was before its compression. It never allocates more than numBytes, and nothing if the
// data cannot stand for as many.
func decompress(data []byte, compression Compression, numBytes int) ([]byte, error) {
	if numBytes > maxRawBytes || numBytes > maxRatios[compression]*len(data) {
		return nil, mismatch("data", fmt.Sprintf("enough bytes for %d", numBytes), len(data))
	}
	raw, err := decompressors[compression](data, make([]byte, numBytes))
	if err == nil && len(raw) != numBytes {
		err = fmt.Errorf("%d bytes", len(raw))
	}
	if err != nil {
		return nil, mismatch("data", fmt.Sprintf("%d bytes, compressed by %v", numBytes, compression), err)
	}
	return raw, nil
}

var decompressors = map[Compression]func(data, raw []byte) ([]byte, error){
	LZ4: func(data, raw []byte) ([]byte, error) {
		count, err := lz4.UncompressBlock(data, raw)
		if err != nil || count > len(raw) {
			return nil, mismatch("lz4", "a block", err)
		}
		return raw[:count], nil
	},
	Zstd: func(data, raw []byte) ([]byte, error) { return zstdDecoder().DecodeAll(data, raw[:0]) },
}

var zstdOnce struct {
	sync.Once
	decoder *zstd.Decoder
}

// zstdDecoder returns a decoder that all goroutines share; it decodes at most as many bytes as there is room for.
func zstdDecoder() *zstd.Decoder {
	zstdOnce.Do(func() {
		decoder, err := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(maxRawBytes), zstd.WithDecodeAllCapLimit(true))
		if err != nil {
			panic(err) // only for options out of range
		}
		zstdOnce.decoder = decoder
	})
	return zstdOnce.decoder
}
