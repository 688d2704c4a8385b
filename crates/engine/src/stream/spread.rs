//! Which pieces stay in memory where not all can.

/// Tells for each piece whether it stays in memory: as many bytes as `room` allows, spread evenly
/// over the order of use, so that the disk never idles for long while others are computed.
pub(crate) fn spread(pieces: &[usize], room: u64) -> Vec<bool> {
    let total: u64 = pieces.iter().map(|bytes| *bytes as u64).sum();
    if total <= room {
        return vec![true; pieces.len()];
    }
    let (mut passed, mut kept) = (0, 0);
    let mut stays: Vec<bool> = pieces
        .iter()
        .map(|bytes| {
            let bytes = *bytes as u64;
            passed += bytes;
            // As close to the room's share of what has passed as whole pieces come.
            let share = u128::from(passed) * u128::from(room) / u128::from(total);
            let stays = kept + bytes <= room && u128::from(kept + bytes - bytes / 2) <= share;
            kept += if stays { bytes } else { 0 };
            stays
        })
        .collect();
    // What is left may still hold a piece.
    for (bytes, stays) in pieces.iter().zip(&mut stays).rev() {
        if !*stays && kept + *bytes as u64 <= room {
            *stays = true;
            kept += *bytes as u64;
        }
    }
    stays
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(pieces: &[usize], room: u64, expected: &str) {
        let drawn: String =
            spread(pieces, room).iter().map(|stays| if *stays { 'x' } else { '.' }).collect();
        assert_eq!(drawn, expected);
    }

    #[test]
    fn what_stays_is_spread_evenly() {
        check(&[10; 10], 100, "xxxxxxxxxx");
        check(&[10; 10], 50, "x.x.x.x.x.");
        check(&[10; 10], 89, "xxxx.xxxx.");
        check(&[10; 10], 29, ".x...x....");
        check(&[10; 10], 9, "..........");
        check(&[6, 9, 9, 9, 6, 9, 9, 9], 33, "x.x.x.x.");
        check(&[], 5, "");
    }

    proptest! {
        #[test]
        fn no_more_stays_than_fits_and_no_piece_is_left_out_that_would_fit(
            pieces in prop::collection::vec(1..1000_usize, 0..60),
            room in 0..40_000_u64,
        ) {
            let stays = spread(&pieces, room);
            let kept: u64 =
                pieces.iter().zip(&stays).filter(|(_, stays)| **stays).map(|(bytes, _)| *bytes as u64).sum();
            prop_assert!(kept <= room);
            for (bytes, stays) in pieces.iter().zip(&stays) {
                prop_assert!(*stays || kept + *bytes as u64 > room);
            }
        }
    }
}
