//! Memory for weights that come and go: one map, cut into regions with one holder each.

use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use llama_cpp_sys_2 as sys;
use memmap2::{MmapOptions, MmapRaw};

/// Anonymous memory in large pages where the system has them.
///
/// Making it reserves addresses only: a page takes memory when it is first written, and gives it
/// back by [`Region::discard`].
#[derive(Clone)]
pub struct Arena {
    memory: Arc<Memory>,
}

/// The map and its aligned part.
struct Memory {
    map: MmapRaw,
    start: usize,
    length: usize,
}

/// What large pages are aligned to on the systems that have them.
const LARGE_PAGE_BYTES: usize = 2 << 20;

impl Arena {
    /// What regions should begin and end at: pages, and blocks of every disk in use.
    pub const ALIGNMENT: usize = 4096;

    /// Reserves `bytes` and returns the arena with the one region that is all of it.
    ///
    /// # Errors
    /// When the addresses are refused.
    pub fn reserve(bytes: usize) -> io::Result<(Self, Region)> {
        let length = bytes.max(1).next_multiple_of(Self::ALIGNMENT);
        let mut options = MmapOptions::new();
        options.len(length.saturating_add(LARGE_PAGE_BYTES)).no_reserve_swap();
        let map = MmapRaw::from(options.map_anon()?);
        let start = map.as_ptr().align_offset(LARGE_PAGE_BYTES);
        #[cfg(target_os = "linux")]
        // Without large pages reading is slower and nothing else changes.
        let _ = map.advise_range(memmap2::Advice::HugePage, start, length);
        let arena = Self { memory: Arc::new(Memory { map, start, length }) };
        let region = Region { memory: Arc::clone(&arena.memory), offset: 0, length };
        Ok((arena, region))
    }

    /// Bytes reserved.
    pub fn bytes(&self) -> usize {
        self.memory.length
    }

    /// Whether `region` was cut from this arena.
    pub(crate) fn owns(&self, region: &Region) -> bool {
        Arc::ptr_eq(&self.memory, &region.memory)
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.memory.pointer(0)
    }
}

impl Memory {
    fn pointer(&self, offset: usize) -> NonNull<u8> {
        assert!(offset <= self.length, "inside the arena");
        // SAFETY: the map is longer than the aligned part by what the start was moved.
        let pointer = unsafe { self.map.as_mut_ptr().add(self.start + offset) };
        NonNull::new(pointer).expect("a map is nowhere near address zero")
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena").field("bytes", &self.bytes()).finish()
    }
}

/// Asks the system for large pages for a buffer of ggml's, if so many lie ready: weights are read
/// from end to end for each token, and with pages of 4 KiB the processor spends a part of that time
/// looking up where they are. Where the system would have to move memory first, loading could take
/// several times as long.
///
/// # Safety
/// The buffer is live and its bytes are memory of this process.
pub(crate) unsafe fn prefer_large_pages(buffer: NonNull<sys::ggml_backend_buffer>) {
    // SAFETY: the buffer is live.
    let bytes = unsafe { sys::ggml_backend_buffer_get_size(buffer.as_ptr()) };
    if bytes < LARGE_PAGE_BYTES || !large_pages_lie_ready(bytes) {
        return;
    }
    #[cfg(target_os = "linux")]
    // SAFETY: as promised; the range covers whole pages inside the buffer, and the advice changes
    // nothing but how the system provides them. Without large pages reading is only slower.
    unsafe {
        let start = sys::ggml_backend_buffer_get_base(buffer.as_ptr());
        let before = start.cast::<u8>().align_offset(Arena::ALIGNMENT);
        if let Some(length) = bytes.checked_sub(before) {
            let whole_pages = length & !(Arena::ALIGNMENT - 1);
            let _ = libc::madvise(start.byte_add(before), whole_pages, libc::MADV_HUGEPAGE);
        }
    }
}

/// Whether so many bytes are free in large pages now; false where the system does not tell.
fn large_pages_lie_ready(bytes: usize) -> bool {
    std::fs::read_to_string("/proc/buddyinfo").is_ok_and(|table| free_large_bytes(&table) >= bytes)
}

/// Bytes in free blocks of a large page and more, by Linux's table: of each zone of memory how many
/// free blocks there are of one page, of two, of four and so on.
fn free_large_bytes(table: &str) -> usize {
    let blocks = |zone: &str| {
        let counts = zone.split_whitespace().skip(4);
        let bytes = counts.enumerate().map(|(order, count)| {
            let block_bytes = Arena::ALIGNMENT << order.min(40);
            let count = count.parse::<usize>().unwrap_or(0);
            if block_bytes < LARGE_PAGE_BYTES { 0 } else { count.saturating_mul(block_bytes) }
        });
        bytes.sum::<usize>()
    };
    table.lines().map(blocks).sum()
}

/// A part of an arena that only its holder can reach.
///
/// Regions are made by cutting others, so that no two ever overlap; that makes it safe to fill one
/// on another thread while graphs read the rest of the arena.
pub struct Region {
    memory: Arc<Memory>,
    offset: usize,
    length: usize,
}

impl Region {
    /// First byte within the arena.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.length
    }

    /// The memory itself.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let pointer = self.memory.pointer(self.offset);
        // SAFETY: the range lies inside the map, which the region keeps alive; regions never
        // overlap, and graphs read only regions that their tensor set holds.
        unsafe { std::slice::from_raw_parts_mut(pointer.as_ptr(), self.length) }
    }

    /// Cuts the region in two and returns the part from byte `at` on.
    ///
    /// # Panics
    /// When the region is shorter.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Self {
        assert!(at <= self.length, "a cut at {at} of {} bytes", self.length);
        let rest = Self {
            memory: Arc::clone(&self.memory),
            offset: self.offset + at,
            length: self.length - at,
        };
        self.length = at;
        rest
    }

    /// Joins the region that follows this one.
    ///
    /// # Errors
    /// Gives `next` back when it does not begin where this one ends.
    pub fn join(&mut self, next: Self) -> Result<(), Self> {
        let follows =
            Arc::ptr_eq(&self.memory, &next.memory) && self.offset + self.length == next.offset;
        if !follows {
            return Err(next);
        }
        self.length += next.length;
        Ok(())
    }

    /// Gives the memory back to the system; the content is lost. Without effect where the system
    /// cannot do it.
    pub fn discard(&mut self) {
        #[cfg(target_os = "linux")]
        // SAFETY: the pages are private and anonymous, and only the holder of the region could
        // see that they become zeros. Partial pages at the ends are refused, not touched.
        unsafe {
            let start = self.memory.start + self.offset;
            let advice = memmap2::UncheckedAdvice::DontNeed;
            let _ = self.memory.map.unchecked_advise_range(advice, start, self.length);
        }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("offset", &self.offset).field("bytes", &self.length).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_cut_filled_on_other_threads_and_joined_again() {
        let (arena, mut first) = Arena::reserve(3 * Arena::ALIGNMENT).unwrap();
        let mut second = first.split_off(Arena::ALIGNMENT);
        let third = second.split_off(Arena::ALIGNMENT);
        let mut second = std::thread::scope(|scope| {
            let filling = scope.spawn(move || {
                second.bytes_mut().fill(7);
                second
            });
            first.bytes_mut().fill(5);
            filling.join().unwrap()
        });
        assert!(arena.owns(&first) && !Arena::reserve(1).unwrap().0.owns(&first));
        let third = first.join(third).unwrap_err();
        second.join(third).unwrap();
        first.join(second).unwrap();
        assert_eq!((first.offset(), first.bytes()), (0, arena.bytes()));
        let (ours, rest) = first.bytes_mut().split_at(Arena::ALIGNMENT);
        assert!(ours.iter().all(|byte| *byte == 5));
        assert!(rest[..Arena::ALIGNMENT].iter().all(|byte| *byte == 7));
        assert!(rest[Arena::ALIGNMENT..].iter().all(|byte| *byte == 0));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn discarded_memory_is_zeros_and_its_neighbour_is_not() {
        let (_arena, mut region) = Arena::reserve(2 * Arena::ALIGNMENT).unwrap();
        region.bytes_mut().fill(9);
        let mut rest = region.split_off(Arena::ALIGNMENT);
        rest.discard();
        assert!(rest.bytes_mut().iter().all(|byte| *byte == 0));
        assert!(region.bytes_mut().iter().all(|byte| *byte == 9));
    }

    #[test]
    fn free_large_pages_are_counted_over_all_zones() {
        let table = "Node 0, zone      DMA      1      1      1      0      1      2      1      1      0      2      3\n\
                     Node 0, zone   Normal   4031   9000    800    700    600    500    400    300    200      0      5\n";
        assert_eq!(free_large_bytes(table), (2 << 21) + (3 << 22) + (5 << 22));
        assert_eq!(free_large_bytes(""), 0);
        assert_eq!(free_large_bytes("nothing of the kind"), 0);
    }

    #[test]
    #[should_panic(expected = "a cut at 4097")]
    fn a_cut_beyond_the_end_is_refused() {
        let (_arena, mut region) = Arena::reserve(1).unwrap();
        let _ = region.split_off(Arena::ALIGNMENT + 1);
    }
}
