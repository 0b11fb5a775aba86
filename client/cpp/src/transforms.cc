#include "transforms.h"

#include <vector>

namespace rollserve::internal {

namespace {

using Texts = google::protobuf::RepeatedPtrField<std::string>;

Texts repeated(const std::vector<std::string>& texts) { return {texts.begin(), texts.end()}; }

std::vector<std::string> listed(const Texts& texts) { return {texts.begin(), texts.end()}; }

template <class Message>
void write_bounds(const std::optional<double>& low, const std::optional<double>& high, Message& message) {
  if (low) message.set_low(*low);
  if (high) message.set_high(*high);
}

void write(const SignRewards&, v1::Transform& message) { message.mutable_sign_rewards(); }

void write(const ClipRewards& transform, v1::Transform& message) {
  write_bounds(transform.low, transform.high, *message.mutable_clip_rewards());
}

void write(const ScaleRewards& transform, v1::Transform& message) {
  auto& scale = *message.mutable_scale_rewards();
  scale.set_factor(transform.factor);
  scale.set_offset(transform.offset);
}

void write(const RescaleActions& transform, v1::Transform& message) {
  write_bounds(transform.low, transform.high, *message.mutable_rescale_actions());
}

void write(const ClipActions&, v1::Transform& message) { message.mutable_clip_actions(); }

void write(const CastObservations& transform, v1::Transform& message) {
  auto& cast = *message.mutable_cast_observations();
  cast.set_data_type(static_cast<v1::DataType>(transform.data_type));
  *cast.mutable_leaves() = repeated(transform.leaves);
}

void write(const ScaleObservations& transform, v1::Transform& message) {
  auto& scale = *message.mutable_scale_observations();
  scale.set_factor(transform.factor);
  scale.set_offset(transform.offset);
  *scale.mutable_leaves() = repeated(transform.leaves);
}

void write(const RescaleObservations& transform, v1::Transform& message) {
  auto& rescale = *message.mutable_rescale_observations();
  rescale.set_low(transform.low);
  rescale.set_high(transform.high);
  *rescale.mutable_leaves() = repeated(transform.leaves);
}

void write(const CropObservations& transform, v1::Transform& message) {
  auto& crop = *message.mutable_crop_observations();
  crop.set_top(transform.top);
  crop.set_left(transform.left);
  crop.set_height(transform.height);
  crop.set_width(transform.width);
  crop.set_channels_first(transform.channels_first);
  *crop.mutable_leaves() = repeated(transform.leaves);
}

void write(const ResizeObservations& transform, v1::Transform& message) {
  auto& resize = *message.mutable_resize_observations();
  resize.set_height(transform.height);
  resize.set_width(transform.width);
  resize.set_channels_first(transform.channels_first);
  *resize.mutable_leaves() = repeated(transform.leaves);
}

void write(const GrayscaleObservations& transform, v1::Transform& message) {
  auto& grayscale = *message.mutable_grayscale_observations();
  grayscale.set_keep_channel(transform.keep_channel);
  grayscale.set_channels_first(transform.channels_first);
  *grayscale.mutable_leaves() = repeated(transform.leaves);
}

void write(const FlattenObservations&, v1::Transform& message) { message.mutable_flatten_observations(); }

template <class Message>
std::optional<double> low_of(const Message& message) {
  return message.has_low() ? std::optional<double>(message.low()) : std::nullopt;
}

template <class Message>
std::optional<double> high_of(const Message& message) {
  return message.has_high() ? std::optional<double>(message.high()) : std::nullopt;
}

Transform read(const v1::CropObservations& crop) {
  return CropObservations{crop.top(),   crop.left(),           crop.height(),
                          crop.width(), crop.channels_first(), listed(crop.leaves())};
}

}  // namespace

void write_transform(const Transform& transform, v1::Transform& message) {
  std::visit([&](const auto& kind) { write(kind, message); }, transform);
}

std::optional<Transform> transform_of(const v1::Transform& message) {
  switch (message.kind_case()) {
    case v1::Transform::kSignRewards:
      return SignRewards{};
    case v1::Transform::kClipRewards:
      return ClipRewards{low_of(message.clip_rewards()), high_of(message.clip_rewards())};
    case v1::Transform::kScaleRewards:
      return ScaleRewards{message.scale_rewards().factor(), message.scale_rewards().offset()};
    case v1::Transform::kRescaleActions:
      return RescaleActions{low_of(message.rescale_actions()), high_of(message.rescale_actions())};
    case v1::Transform::kClipActions:
      return ClipActions{};
    case v1::Transform::kCastObservations: {
      const auto& cast = message.cast_observations();
      return CastObservations{static_cast<DataType>(cast.data_type()), listed(cast.leaves())};
    }
    case v1::Transform::kScaleObservations: {
      const auto& scale = message.scale_observations();
      return ScaleObservations{scale.factor(), scale.offset(), listed(scale.leaves())};
    }
    case v1::Transform::kRescaleObservations: {
      const auto& rescale = message.rescale_observations();
      return RescaleObservations{rescale.low(), rescale.high(), listed(rescale.leaves())};
    }
    case v1::Transform::kCropObservations:
      return read(message.crop_observations());
    case v1::Transform::kResizeObservations: {
      const auto& resize = message.resize_observations();
      return ResizeObservations{resize.height(), resize.width(), resize.channels_first(), listed(resize.leaves())};
    }
    case v1::Transform::kGrayscaleObservations: {
      const auto& grayscale = message.grayscale_observations();
      return GrayscaleObservations{grayscale.keep_channel(), grayscale.channels_first(), listed(grayscale.leaves())};
    }
    case v1::Transform::kFlattenObservations:
      return FlattenObservations{};
    default:
      return std::nullopt;
  }
}

}  // namespace rollserve::internal
