// The states of recurrent layers: slots with the state of a sequence in every layer, as kernels/reference/reference_states.py specifies.
#pragma once

#include <vector>

#include "buffer.hpp"
#include "step.hpp"

namespace ferrum {

// Layers with equal states; see core/state_shape.py.
struct StateShape {
    int64_t numbers, row_numbers, num_layers;
};

class States {
public:
    void allocate(int64_t num_slots, const std::vector<StateShape>& shapes, int64_t kept_rows);

    int64_t groups() const { return static_cast<int64_t>(groups_.size()); }
    const StateShape& shape(int64_t group) const { return groups_.at(static_cast<size_t>(group)).shape; }
    int64_t num_slots() const { return num_slots_; }
    int64_t nbytes() const;

    // Whether the step's slots and rows are possible, and every state has seen the tokens before its span. Nothing is
    // written. Throws std::invalid_argument, or std::runtime_error for a row that would be applied twice or skipped.
    void check(const Step& step);

    // The state of a slot in a layer [numbers], the rows kept next to it [kept_rows, row_numbers], and the number of
    // tokens that it has seen.
    float* state(int64_t group, int64_t layer, int64_t slot) const;
    float* rows(int64_t group, int64_t layer, int64_t slot) const;
    int64_t& seen(int64_t group, int64_t layer, int64_t slot) const;

    // A slot as one run of bytes: of each layer of each group the state, the kept rows and the number of tokens.
    int64_t slot_bytes() const;
    void copy_slot(int64_t source, int64_t target);
    void read_slot(int64_t slot, uint8_t* out) const;
    void write_slot(int64_t slot, const uint8_t* in);

private:
    struct Group {
        StateShape shape;
        Buffer states, rows, seen;
    };

    // Call work(memory, bytes) with each part of a slot, in the order of its bytes.
    template <class Work>
    void for_parts(int64_t slot, Work work) const;
    void check_slots(const StepStates& states);
    void check_seen(const Step& step) const;

    std::vector<Group> groups_;
    int64_t num_slots_ = 0, kept_rows_ = 0;
    // Which span reads or writes a slot in the step that is checked: one after another, so that nothing is cleared.
    std::vector<uint64_t> readers_, writers_;
    uint64_t before_ = 0;
};

}  // namespace ferrum
