//! Memory of an arena that nobody holds.

use motley_ggml::Region;

/// Free regions by their place; neighbours are one.
#[derive(Debug)]
pub(crate) struct Pool {
    free: Vec<Region>,
    /// Where memory was last cut in turn.
    cursor: usize,
}

impl Pool {
    pub(crate) fn new(region: Region) -> Self {
        Self { free: vec![region], cursor: 0 }
    }

    /// Memory as near the front as it fits: large pages are then shared by what stays.
    pub(crate) fn take_first(&mut self, bytes: usize) -> Option<Region> {
        let place = self.free.iter().position(|free| free.bytes() >= bytes)?;
        Some(self.cut(place, bytes))
    }

    /// Memory behind what was last taken in turn, or as near the front as it fits: the pool is then
    /// used round and round.
    pub(crate) fn take_next(&mut self, bytes: usize) -> Option<Region> {
        let fits = |free: &Region| free.bytes() >= bytes;
        let behind = |free: &Region| free.offset() >= self.cursor && fits(free);
        let place = self.free.iter().position(behind);
        let place = place.or_else(|| self.free.iter().position(fits))?;
        let taken = self.cut(place, bytes);
        self.cursor = taken.offset() + bytes;
        Some(taken)
    }

    pub(crate) fn give_back(&mut self, region: Region) {
        let place = self.free.partition_point(|free| free.offset() < region.offset());
        self.free.insert(place, region);
        for first in [place, place.saturating_sub(1)] {
            if first + 1 < self.free.len() {
                let next = self.free.remove(first + 1);
                if let Err(next) = self.free[first].join(next) {
                    self.free.insert(first + 1, next);
                }
            }
        }
    }

    fn cut(&mut self, place: usize, bytes: usize) -> Region {
        let rest = self.free[place].split_off(bytes);
        if rest.bytes() == 0 {
            return self.free.remove(place);
        }
        std::mem::replace(&mut self.free[place], rest)
    }
}

#[cfg(test)]
mod tests {
    use motley_ggml::Arena;

    use super::*;

    #[test]
    fn memory_is_taken_from_the_front_or_in_turn_and_joined_again() {
        let page = Arena::ALIGNMENT;
        let (_arena, all) = Arena::reserve(10 * page).unwrap();
        let mut pool = Pool::new(all);
        let mut held: Vec<Region> = (0..3).map(|_| pool.take_next(3 * page).unwrap()).collect();
        assert!(pool.take_next(2 * page).is_none());
        pool.give_back(held.remove(0));
        pool.give_back(held.remove(0));
        // In turn the page at the end comes first, then the front again.
        assert_eq!(pool.take_next(page).unwrap().offset(), 9 * page);
        let front = pool.take_next(4 * page).unwrap();
        assert_eq!(front.offset(), 0);
        assert_eq!(pool.take_first(page).unwrap().offset(), 4 * page);
        pool.give_back(held.remove(0));
        pool.give_back(front);
        assert_eq!(pool.take_first(4 * page).unwrap().offset(), 0);
        assert_eq!(pool.take_first(4 * page).unwrap().offset(), 5 * page);
        assert!(pool.take_first(1).is_none());
    }
}
