#include "states.hpp"

#include <cstring>
#include <stdexcept>
#include <string>

namespace ferrum {

namespace {

constexpr int64_t kFloat = sizeof(float);

void require(bool holds, const char* error) {
    if (!holds) throw std::invalid_argument(error);
}

size_t at(const StateShape& shape, int64_t layer, int64_t slots, int64_t slot) {
    if (layer < 0 || layer >= shape.num_layers || slot < 0 || slot >= slots) throw std::out_of_range("no such state");
    return static_cast<size_t>(layer * slots + slot);
}

}  // namespace

void States::allocate(int64_t num_slots, const std::vector<StateShape>& shapes, int64_t kept_rows) {
    num_slots_ = num_slots;
    kept_rows_ = kept_rows;
    readers_.assign(static_cast<size_t>(num_slots), 0);
    writers_.assign(static_cast<size_t>(num_slots), 0);
    for (const StateShape& shape : shapes) {
        const int64_t count = shape.num_layers * num_slots;
        groups_.push_back({shape, Buffer(count * shape.numbers * kFloat), Buffer(count * kept_rows * shape.row_numbers * kFloat),
                           Buffer(count * static_cast<int64_t>(sizeof(int64_t)))});
    }
}

int64_t States::nbytes() const {
    int64_t total = 0;
    for (const Group& group : groups_) total += group.states.size() + group.rows.size() + group.seen.size();
    return total;
}

float* States::state(int64_t group, int64_t layer, int64_t slot) const {
    const Group& g = groups_.at(static_cast<size_t>(group));
    return reinterpret_cast<float*>(g.states.data()) + at(g.shape, layer, num_slots_, slot) * static_cast<size_t>(g.shape.numbers);
}

float* States::rows(int64_t group, int64_t layer, int64_t slot) const {
    const Group& g = groups_.at(static_cast<size_t>(group));
    const auto size = static_cast<size_t>(kept_rows_ * g.shape.row_numbers);
    return reinterpret_cast<float*>(g.rows.data()) + at(g.shape, layer, num_slots_, slot) * size;
}

int64_t& States::seen(int64_t group, int64_t layer, int64_t slot) const {
    const Group& g = groups_.at(static_cast<size_t>(group));
    return reinterpret_cast<int64_t*>(g.seen.data())[at(g.shape, layer, num_slots_, slot)];
}

void States::check(const Step& step) {
    const StepStates& states = step.states;
    if (states.read.empty()) return;
    for (size_t span = 0; span < states.read.size(); ++span) {
        const int32_t waiting = states.waiting[span], kept = states.kept[span];
        const int32_t rows = step.span_rows[span + 1] - step.span_rows[span];
        require(waiting >= 0 && waiting <= kept_rows_ && (waiting == 0 || states.read[span] >= 0), "more rows wait than a slot keeps");
        require(kept >= 0 && kept <= kept_rows_ && kept <= waiting + rows, "more rows to keep than a slot keeps, or than there are");
    }
    check_slots(states);
    check_seen(step);
}

// No span may write a slot that another one reads or writes: they run at the same time.
void States::check_slots(const StepStates& states) {
    const uint64_t before = before_;
    before_ += states.read.size();
    for (size_t span = 0; span < states.read.size(); ++span) {
        const int32_t read = states.read[span], write = states.write[span];
        require(read >= -1 && read < num_slots_ && write >= 0 && write < num_slots_, "slot of a state out of range");
        require(writers_[static_cast<size_t>(write)] <= before, "two spans write one slot");
        writers_[static_cast<size_t>(write)] = before + span + 1;
        if (read >= 0) readers_[static_cast<size_t>(read)] = before + span + 1;
    }
    for (size_t span = 0; span < states.read.size(); ++span) {
        const uint64_t reader = readers_[static_cast<size_t>(states.write[span])];
        require(reader <= before || reader == before + span + 1, "a span writes a slot that another one reads");
    }
}

void States::check_seen(const Step& step) const {
    for (size_t span = 0; span < step.states.read.size(); ++span) {
        const int64_t slot = step.states.read[span], waiting = step.states.waiting[span];
        const int64_t start = step.positions[static_cast<size_t>(step.span_rows[span])];
        for (int64_t group = 0; group < groups(); ++group)
            for (int64_t layer = 0; layer < shape(group).num_layers; ++layer) {
                const int64_t known = slot < 0 ? 0 : seen(group, layer, slot);
                if (known + waiting == start) continue;
                throw std::runtime_error("the state in slot " + std::to_string(slot) + " has seen " + std::to_string(known) + " tokens and " +
                                         std::to_string(waiting) + " rows wait, not " + std::to_string(start));
            }
    }
}

template <class Work>
void States::for_parts(int64_t slot, Work work) const {
    for (int64_t group = 0; group < groups(); ++group) {
        const StateShape& s = shape(group);
        for (int64_t layer = 0; layer < s.num_layers; ++layer) {
            work(reinterpret_cast<std::byte*>(state(group, layer, slot)), s.numbers * kFloat);
            work(reinterpret_cast<std::byte*>(rows(group, layer, slot)), kept_rows_ * s.row_numbers * kFloat);
            work(reinterpret_cast<std::byte*>(&seen(group, layer, slot)), static_cast<int64_t>(sizeof(int64_t)));
        }
    }
}

int64_t States::slot_bytes() const {
    int64_t total = 0;
    for (const Group& group : groups_) {
        const StateShape& s = group.shape;
        total += s.num_layers * ((s.numbers + kept_rows_ * s.row_numbers) * kFloat + static_cast<int64_t>(sizeof(int64_t)));
    }
    return total;
}

void States::copy_slot(int64_t source, int64_t target) {
    for (int64_t group = 0; group < groups(); ++group) {
        const StateShape& s = shape(group);
        for (int64_t layer = 0; layer < s.num_layers; ++layer) {
            const float *state = this->state(group, layer, source), *rows = this->rows(group, layer, source);
            std::memcpy(this->state(group, layer, target), state, static_cast<size_t>(s.numbers * kFloat));
            std::memcpy(this->rows(group, layer, target), rows, static_cast<size_t>(kept_rows_ * s.row_numbers * kFloat));
            seen(group, layer, target) = seen(group, layer, source);
        }
    }
}

void States::read_slot(int64_t slot, uint8_t* out) const {
    for_parts(slot, [&](const std::byte* part, int64_t bytes) {
        std::memcpy(out, part, static_cast<size_t>(bytes));
        out += bytes;
    });
}

void States::write_slot(int64_t slot, const uint8_t* in) {
    for_parts(slot, [&](std::byte* part, int64_t bytes) {
        std::memcpy(part, in, static_cast<size_t>(bytes));
        in += bytes;
    });
}

}  // namespace ferrum
